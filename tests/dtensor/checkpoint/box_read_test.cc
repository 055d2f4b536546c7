#include "dtensor/checkpoint/box_read.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtensor/checkpoint/files/counting_files.h"

namespace weft {
namespace {

using testing::Each;
using testing::Field;

constexpr int64_t kHead = 24;  // of the file, before the first element

// Reads columns [from, to) of u8[rows, columns], whose elements follow from their places; returns the calls.
std::vector<FileRead> ReadColumns(int64_t rows, int64_t columns, int64_t from, int64_t to) {
  const auto element = [](int64_t i) { return static_cast<char>(i * 7 + i / 251); };
  const std::string path = testing::TempDir() + "/rank-columns";
  std::string bytes(kHead, 'h');
  for (int64_t i = 0; i < rows * columns; ++i) bytes += element(i);
  std::ofstream(path, std::ios::binary) << bytes;
  CountingFiles files;
  const int64_t width = to - from;
  std::vector<char> out(static_cast<size_t>(rows * width));
  const StoredBox stored = {.region = {{0, 0}, {rows, columns}}, .file_offset = kHead, .item_size = 1};
  const auto crc = ReadShared(*files.Open(path), stored, {{0, from}, {rows, width}}, out.data());
  EXPECT_EQ(crc.has_value(), width == columns);
  int64_t wrong = 0;
  for (int64_t i = 0; i < rows * width; ++i) {
    wrong += out[static_cast<size_t>(i)] != element(i / width * columns + from + i % width);
  }
  EXPECT_EQ(wrong, 0) << rows << " x " << columns << ", columns " << from << " to " << to;
  return files.reads();
}

// A split by columns leaves gaps in every row. Those of 16 KiB are read over; a byte more, and each row is a call of its own.
TEST(BoxReadTest, NearRunsAreOneCall) {
  constexpr int64_t kGap = 16 << 10;
  for (const int64_t width : {int64_t{1}, int64_t{1000}, kGap}) {
    const std::vector<FileRead> near = ReadColumns(16, width + kGap, kGap, width + kGap);
    ASSERT_EQ(near.size(), 1) << width;
    EXPECT_EQ(near[0].offset, kHead + kGap);
    EXPECT_EQ(near[0].num_bytes, 16 * width + 15 * kGap);
    const std::vector<FileRead> far = ReadColumns(16, width + kGap + 1, 0, width);
    ASSERT_EQ(far.size(), 16) << width;
    EXPECT_THAT(far, Each(Field(&FileRead::num_bytes, width)));
    EXPECT_EQ(far[15].offset, kHead + 15 * (width + kGap + 1));
  }
}

// However near: no call is longer than the scratch of 4 MiB, and none reads what lies behind the last element.
TEST(BoxReadTest, CallsHaveABound) {
  const std::vector<FileRead> reads = ReadColumns(700, 16 << 10, 0, 8 << 10);
  ASSERT_EQ(reads.size(), 3);
  int64_t total = 0;
  for (const FileRead& read : reads) {
    EXPECT_LE(read.num_bytes, 4 << 20);
    total += read.num_bytes;
  }
  EXPECT_EQ(total, (int64_t{700} << 14) - 3 * (8 << 10));
}

// Rows, whole: one call for exactly those, and all of them give the checksum.
TEST(BoxReadTest, RowsAreOneRun) {
  const std::vector<FileRead> reads = ReadColumns(9, 31, 0, 31);
  ASSERT_EQ(reads.size(), 1);
  EXPECT_EQ(std::pair(reads[0].offset, reads[0].num_bytes), std::pair(kHead, int64_t{9 * 31}));
}

}  // namespace
}  // namespace weft
