#include "dtensor/checkpoint/files/files.h"

#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What both the disk and the one that tests crash do alike.
void CheckFiles(Files& files, const std::string& root) {
  MakeFolders(files, root + "/a/b");
  MakeFolders(files, root + "/a/b");
  EXPECT_EQ(files.SizeOf(root + "/a/b"), std::nullopt);
  EXPECT_EQ(files.SizeOf(root + "/none/x"), std::nullopt);
  WriteText(files, root + "/a/x", "long text");
  WriteText(files, root + "/a/x", "text");
  EXPECT_EQ(files.SizeOf(root + "/a/x"), 4);
  EXPECT_EQ(ReadText(files, root + "/a/x", 4), "text");
  EXPECT_THAT(MessageOf([&] { ReadText(files, root + "/a/x", 3); }), HasSubstr("has 4 bytes, at most 3"));
  const auto opened = files.Open(root + "/a/x");
  char bytes[4] = {};
  EXPECT_EQ(opened->ReadAt(1, bytes, 2), 2);
  EXPECT_EQ(std::string(bytes, 2), "ex");
  EXPECT_EQ(opened->ReadAt(4, bytes, 1), 0);
  EXPECT_THAT(MessageOf([&] { ReadAll(*opened, 2, bytes, 4); }),
              HasSubstr("a/x' ends at byte 4; 2 more were expected"));
  EXPECT_THAT(files.List(root + "/a"), ElementsAre("b", "x"));
  files.Rename(root + "/a/x", root + "/a/y");
  files.SyncFolder(root + "/a");
  EXPECT_THAT(MessageOf([&] { files.Open(root + "/a/x"); }), HasSubstr("cannot read '" + root + "/a/x'"));
  EXPECT_THAT(MessageOf([&] { files.Remove(root + "/a"); }), HasSubstr("cannot remove"));
  // A folder that is not empty does not give way to another; one that is does.
  MakeFolders(files, root + "/c/d");
  EXPECT_THAT(MessageOf([&] { files.Rename(root + "/a", root + "/c"); }), HasSubstr("cannot rename"));
  RemoveFolder(files, root + "/a/b");
  RemoveFolder(files, root + "/a/b");
  RemoveFolder(files, root + "/a");
  RemoveFolder(files, root + "/c");
  MakeFolders(files, root + "/e/f/g");
  WriteText(files, root + "/e/f/x", "text");
  EXPECT_TRUE(files.IsFolder(root + "/e/f"));
  EXPECT_FALSE(files.IsFolder(root + "/e/f/x"));
  EXPECT_FALSE(files.IsFolder(root + "/e/none"));
  RemoveFolder(files, root + "/e");
  EXPECT_TRUE(files.List(root).empty());
}

TEST(FilesTest, TheDisk) {
  const std::string root = testing::TempDir() + "/files";
  std::filesystem::remove_all(root);
  CheckFiles(*MakeDiskFiles(), root);
}

TEST(FilesTest, TheOneThatCrashes) {
  CrashFiles files;
  CheckFiles(files, "root");
}

TEST(FilesTest, ALinkGoesAndNotWhatItLeadsTo) {
  const std::string root = testing::TempDir() + "/links";
  std::filesystem::remove_all(root);
  const std::shared_ptr<Files> files = MakeDiskFiles();
  MakeFolders(*files, root + "/archive");
  MakeFolders(*files, root + "/run");
  WriteText(*files, root + "/archive/x", "text");
  for (const char* link : {"/step", "/run/inside"}) {
    std::filesystem::create_directory_symlink(root + "/archive", root + link);
    EXPECT_FALSE(files->IsFolder(root + link));
  }
  RemoveFolder(*files, root + "/step");
  RemoveFolder(*files, root + "/run");
  EXPECT_THAT(files->List(root), ElementsAre("archive"));
  EXPECT_EQ(ReadText(*files, root + "/archive/x", 4), "text");
}

TEST(FilesTest, AFolderGoesAsFarAsItCan) {
  CrashFiles files;
  MakeFolders(files, "a/b");
  for (const char* path : {"a/b/x", "a/b/y", "a/c"}) WriteText(files, path, "");
  files.FailRemoves("a/b/x");
  EXPECT_EQ(MessageOf([&] { RemoveFolder(files, "a"); }), "cannot remove 'a/b/x': Device or resource busy");
  EXPECT_THAT(files.List("a"), ElementsAre("b"));
  EXPECT_THAT(files.List("a/b"), ElementsAre("x"));
}

// To open a pipe would wait for a writer.
TEST(FilesTest, WhatIsNoFileIsNotOpened) {
  const std::string path = testing::TempDir() + "/pipe";
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const std::shared_ptr<Files> files = MakeDiskFiles();
  EXPECT_EQ(MessageOf([&] { files->Open(path); }), "cannot read '" + path + "': expected a regular file");
  EXPECT_EQ(files->SizeOf(path), std::nullopt);
  EXPECT_EQ(MessageOf([&] { files->Open(testing::TempDir()); }),
            "cannot read '" + testing::TempDir() + "': Is a directory");
}

TEST(FilesTest, AFullDisk) {
  const std::shared_ptr<Files> files = MakeDiskFiles();
  const auto full = files->Create("/dev/full");
  try {
    WriteAll(*full, "x", 1);
    FAIL() << "a full disk takes a byte";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(error.message(), "cannot write '/dev/full': No space left on device");
  }
}

TEST(FilesTest, Paths) {
  EXPECT_EQ(JoinPath("", "a"), "a");
  EXPECT_EQ(JoinPath("/", "a"), "/a");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(FolderOf("a/b/"), "a");
  EXPECT_EQ(FolderOf("/a"), "/");
  EXPECT_EQ(FolderOf("a"), "");
}

// Any subset of what is not durable: of a file that is written and named there are four outcomes, and one after both syncs.
TEST(FilesTest, ACrashKeepsAnySubset) {
  CrashFiles files;
  const DiskImage before = files.StartLog();
  WriteText(files, "x", "a");  // name, write (one byte: one part), sync
  files.SyncFolder("");
  const std::vector<DiskOp> log = files.log();
  ASSERT_EQ(log.size(), 4u);
  const auto outcomes = [&](size_t num_done) {
    std::multiset<std::string> found;
    VisitCrashes(before, log, num_done, /*seed=*/1, /*samples=*/10, [&](const DiskImage& image) {
      CrashFiles crashed(image);
      found.insert(crashed.SizeOf("x") ? ReadText(crashed, "x", 10) : "none");
    });
    return found;
  };
  EXPECT_THAT(outcomes(0), ElementsAre("none"));
  EXPECT_THAT(outcomes(1), ElementsAre("", "none"));
  EXPECT_THAT(outcomes(2), ElementsAre("", "a", "none", "none"));
  EXPECT_THAT(outcomes(3), ElementsAre("a", "none"));
  EXPECT_THAT(outcomes(4), ElementsAre("a"));
}

}  // namespace
}  // namespace weft
