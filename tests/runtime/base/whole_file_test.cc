#include "runtime/base/whole_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(WholeFileTest, EveryByte) {
  const std::string path = testing::TempDir() + "/whole_file";
  for (const size_t num_bytes : {0, 1, 4095, 1 << 18, (1 << 18) + 1, 3 << 18}) {
    std::string bytes;
    for (size_t i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>(i * 7 + i / 256));
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(ReadWholeFile(path), bytes) << num_bytes;
  }
  std::filesystem::remove(path);
}

TEST(WholeFileTest, WhatIsWrongIsSaid) {
  const auto message = [](const std::string& path) { return MessageOf([&] { ReadWholeFile(path); }); };
  EXPECT_EQ(message("/no/such/file"), "cannot read '/no/such/file': No such file or directory");
  EXPECT_EQ(message("/tmp"), "cannot read '/tmp': Is a directory");
  // Its first byte belongs to no memory.
  EXPECT_EQ(message("/proc/self/mem"), "cannot read '/proc/self/mem': Input/output error");
  try {
    ReadWholeFile("/no/such/file");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(InvalidArgumentMessage([] { ReadWholeFile("/tmp"); }), "cannot read '/tmp': Is a directory");
}

}  // namespace
}  // namespace weft
