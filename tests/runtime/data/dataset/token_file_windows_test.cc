#include "runtime/data/dataset/token_file_windows.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/data/dataset/token_windows.h"
#include "tests/message_of.h"
#include "tests/runtime/data/dataset/read_sample.h"

namespace weft {
namespace {

class TokenFileWindowsTest : public testing::Test {
 protected:
  ~TokenFileWindowsTest() override { std::filesystem::remove(path_); }

  // Each token in `width` bytes, the lowest first, after a header of `header` bytes.
  void Write(const std::vector<int64_t>& tokens, int width, int header = 0) const {
    std::ofstream out(path_, std::ios::binary);
    out << std::string(static_cast<size_t>(header), 'h');
    for (const int64_t token : tokens) {
      for (int byte = 0; byte < width; ++byte) out.put(static_cast<char>(token >> (8 * byte) & 0xff));
    }
  }

  const std::string path_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".bin";
};

TEST_F(TokenFileWindowsTest, HasTheWindowsOfTheSameTokensInMemory) {
  std::vector<int64_t> wide;
  for (int64_t i = 0; i < 300; ++i) wide.push_back(i * 7919 % 65536);
  const std::vector<int32_t> tokens(wide.begin(), wide.end());
  for (const int width : {2, 4}) {
    for (const int header : {0, 1024}) {
      Write(wide, width, header);
      for (const int64_t stride : {0, 3}) {
        const TokenFileWindows file(path_, {.width = width == 2 ? TokenWidth::k16 : TokenWidth::k32,
                                            .header_bytes = header,
                                            .context = 16,
                                            .stride = stride});
        const TokenWindows memory(tokens, {.context = 16, .stride = stride});
        ASSERT_EQ(file.num_samples(), memory.num_samples());
        EXPECT_EQ(file.fields(), memory.fields());
        for (int64_t i = 0; i < file.num_samples(); ++i)
          ASSERT_EQ(ReadSample(file, i), ReadSample(memory, i));
      }
    }
  }
}

TEST_F(TokenFileWindowsTest, AFileThatHasBecomeShorterIsSaidSo) {
  Write(std::vector<int64_t>(100, 5), 2);
  const TokenFileWindows file(path_, {.context = 9});
  std::filesystem::resize_file(path_, 31);
  EXPECT_EQ(ReadSample(file, 0)[0], std::vector<int32_t>(9, 5));
  try {
    ReadSample(file, 1);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(error.message(), "the file ends at byte 31: expected 20 bytes from byte 18 on");
  }
  EXPECT_EQ(file.NameOf(1), "'" + path_ + "', tokens [9, 19)");
}

TEST_F(TokenFileWindowsTest, RefusesWhatIsNoFileOfTokens) {
  EXPECT_EQ(MessageOf([&] { TokenFileWindows(path_, {.context = 2}); }),
            "'" + path_ + "': No such file or directory");
  EXPECT_EQ(MessageOf([&] { TokenFileWindows(testing::TempDir(), {.context = 2}); }),
            "'" + testing::TempDir() + "': expected a regular file");
  Write({1, 2, 3}, 2, /*header=*/1);
  EXPECT_EQ(InvalidArgumentMessage([&] { TokenFileWindows(path_, {.context = 2}); }),
            "'" + path_ + "': its 7 bytes are not a header of 0 and tokens of 2 bytes");
  Write({1, 2, 3}, 2);
  EXPECT_EQ(InvalidArgumentMessage([&] { TokenFileWindows(path_, {.context = 3}); }),
            "token windows: 3 tokens of '" + path_ + "' are too few: a sample of context 3 takes 4");
  Write({1, int64_t{1} << 31, 3}, 4);
  EXPECT_EQ(
      MessageOf([&] { ReadSample(TokenFileWindows(path_, {.width = TokenWidth::k32, .context = 2}), 0); }),
      "token 2147483648 is not below 2^31");
}

}  // namespace
}  // namespace weft
