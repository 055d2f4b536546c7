#include "runtime/base/crc32c.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

// One bit at a time, of the polynomial's reflection.
uint32_t Naive32(const std::vector<uint8_t>& bytes) {
  uint32_t crc = ~0u;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}
uint64_t Naive64(const std::vector<uint8_t>& bytes) {
  uint64_t crc = ~uint64_t{0};
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xc96c5795d7870f42u : 0u);
  }
  return ~crc;
}

TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(CrcText(Crc32c("123456789")), "e3069283");
  EXPECT_EQ(CrcText(Crc32c("")), "00000000");
  // RFC 3720, B.4: 32 bytes of zeroes; of ones.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(CrcText(Crc64("123456789", 9)), "995dc9bbdf1939fa");
}

TEST(Crc32cTest, IsTheBitwiseSumInAnyParts) {
  std::vector<uint8_t> bytes;
  uint64_t random = 1;
  for (const size_t size : {0, 1, 2, 7, 8, 63, 64, 65, 1000, 4097}) {
    while (bytes.size() < size) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      bytes.push_back(static_cast<uint8_t>(random >> 56));
    }
    const auto length = static_cast<int64_t>(size);
    EXPECT_EQ(Crc32c(bytes.data(), length), Naive32(bytes)) << size;
    EXPECT_EQ(Crc64(bytes.data(), length), Naive64(bytes)) << size;
    for (const int64_t cut : {int64_t{0}, int64_t{1}, length / 3, length}) {
      if (cut > length) continue;
      EXPECT_EQ(Crc32c(bytes.data() + cut, length - cut, Crc32c(bytes.data(), cut)), Naive32(bytes));
      EXPECT_EQ(Crc64(bytes.data() + cut, length - cut, Crc64(bytes.data(), cut)), Naive64(bytes));
    }
  }
}

// Pages that hold zeros until they are written to, and cost no memory; null, if the system gives no such addresses.
class Zeros {
 public:
  explicit Zeros(int64_t num_bytes) : num_bytes_(static_cast<size_t>(num_bytes)) {
    void* const pages =
        mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages != MAP_FAILED) data_ = static_cast<uint8_t*>(pages);
  }
  ~Zeros() {
    if (data_ != nullptr) munmap(data_, num_bytes_);
  }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;

  uint8_t* data() const { return data_; }

 private:
  const size_t num_bytes_;
  uint8_t* data_ = nullptr;
};

// ISA-L counts the bytes in an int: what is longer goes to it by parts of 1 GiB, of which there are three here.
TEST(Crc32cTest, BeyondTwoGibibytes) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  constexpr int64_t kSize = 2 * kGiB + 12345;
  const Zeros zeros(kSize);
  if (zeros.data() == nullptr) {
    std::puts("skipped: there are no 2 GiB of addresses");
    return;
  }
  for (const int64_t at : {int64_t{0}, kGiB - 1, kGiB, kGiB + 1, 2 * kGiB - 1, 2 * kGiB, kSize - 1}) {
    zeros.data()[at] = static_cast<uint8_t>(1 + at % 255);
  }
  uint32_t crc32 = 0;
  uint64_t crc64 = 0;
  constexpr int64_t kPart = 700'000'001;
  for (int64_t done = 0; done < kSize; done += kPart) {
    const int64_t part = std::min(kPart, kSize - done);
    crc32 = Crc32c(zeros.data() + done, part, crc32);
    crc64 = Crc64(zeros.data() + done, part, crc64);
  }
  EXPECT_EQ(CrcText(Crc32c(zeros.data(), kSize)), CrcText(crc32));
  EXPECT_EQ(CrcText(Crc64(zeros.data(), kSize)), CrcText(crc64));
}

TEST(Crc32cTest, Texts) {
  EXPECT_EQ(ParseCrc32("0000abcd"), 0xabcdu);
  EXPECT_EQ(ParseCrc64("00000000ffffffff"), 0xffffffffu);
  for (const char* text : {"", "abc", "0000ABCD", "0000abcg", "0000abcde", " 000abcd"}) {
    EXPECT_FALSE(ParseCrc32(text)) << text;
  }
}

}  // namespace
}  // namespace weft
