#include "dtensor/checkpoint/files/open_files.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/message_of.h"

namespace weft {
namespace {

// Of eight files, two stay open: the two that were asked for last; what is held stays open too.
TEST(OpenFilesTest, TheOldestGo) {
  const auto files = std::make_shared<CrashFiles>();
  for (int i = 0; i < 8; ++i) WriteText(*files, absl::StrCat("f", i), absl::StrCat("text ", i));
  OpenFiles open(files, /*most=*/2);
  std::weak_ptr<FileReader> readers[8];
  for (int i = 0; i < 8; ++i) {
    std::string text(6, ' ');
    const std::shared_ptr<FileReader> file = open.Get(absl::StrCat("f", i));
    readers[i] = file;
    ReadAll(*file, 0, text.data(), 6);
    EXPECT_EQ(text, absl::StrCat("text ", i));
  }
  for (int i = 0; i < 8; ++i) EXPECT_EQ(readers[i].expired(), i < 6) << i;
  EXPECT_EQ(open.Get("f6"), readers[6].lock());  // in front of f7 now
  const std::shared_ptr<FileReader> held = open.Get("f0");
  EXPECT_TRUE(readers[7].expired());
  EXPECT_FALSE(readers[6].expired());
  open.Get("f1");
  open.Get("f2");
  EXPECT_EQ(held->num_bytes(), 6);
  EXPECT_NE(MessageOf([&] { open.Get("none"); }), "no error");
}

TEST(OpenFilesTest, TheProcesssLimitHolds) {
  EXPECT_GE(MostOpenFiles(), 2u);
  EXPECT_LE(MostOpenFiles(), 256u);
}

}  // namespace
}  // namespace weft
