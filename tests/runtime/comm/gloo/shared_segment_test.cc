#include "runtime/comm/gloo/shared_segment.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBytes = 8192;

class SharedSegmentTest : public testing::Test {
 protected:
  SharedSegmentTest() {
    std::string name = absl::StrCat(testing::TempDir(), "/segments-XXXXXX");
    folder_ = mkdtemp(name.data());
  }
  ~SharedSegmentTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

std::string MessageOf(const std::string& address, const std::string& folder, int64_t num_bytes) {
  try {
    SharedSegment::Open(address, folder, num_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    return error.message();
  }
  return "nothing was thrown";
}

// So whatever kills its process, nothing is left behind.
TEST_F(SharedSegmentTest, HasNoNameWhileItLives) {
  const auto segment = SharedSegment::Make(folder_, kBytes);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(SharedSegmentTest, AnotherProcessSeesItsBytesAndWhetherItsMakerLives) {
  int address_pipe[2], end_pipe[2];
  ASSERT_EQ(pipe(address_pipe), 0);
  ASSERT_EQ(pipe(end_pipe), 0);
  const pid_t maker = fork();
  ASSERT_GE(maker, 0);
  if (maker == 0) {
    const auto segment = SharedSegment::Make(folder_, kBytes);
    std::strcpy(segment->data() + kBytes - 8, "written");
    const std::string& address = segment->address();
    char end = 0;
    const bool told = write(address_pipe[1], address.data(), address.size()) > 0;
    _exit(told && read(end_pipe[0], &end, 1) == 1 ? 0 : 1);
  }
  char address[256] = "";
  ASSERT_GT(read(address_pipe[0], address, sizeof(address) - 1), 0);
  const auto opened = SharedSegment::Open(address, folder_, kBytes);
  EXPECT_STREQ(opened->data() + kBytes - 8, "written");
  EXPECT_EQ(opened->data()[0], 0);
  EXPECT_TRUE(opened->MakerIsAlive());
  ASSERT_EQ(write(end_pipe[1], "e", 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(maker, &status, 0), maker);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(opened->MakerIsAlive());
  EXPECT_STREQ(opened->data() + kBytes - 8, "written");
  for (const int end : {address_pipe[0], address_pipe[1], end_pipe[0], end_pipe[1]}) close(end);
}

// The child has the descriptor, and so the lock.
TEST_F(SharedSegmentTest, AChildThatOutlivesTheMakerIsNotTheMaker) {
  int address_pipe[2], end_pipe[2];
  ASSERT_EQ(pipe(address_pipe), 0);
  ASSERT_EQ(pipe(end_pipe), 0);
  const pid_t maker = fork();
  ASSERT_GE(maker, 0);
  if (maker == 0) {
    const auto segment = SharedSegment::Make(folder_, kBytes);
    close(end_pipe[1]);
    char end = 0;
    if (fork() == 0) _exit(static_cast<int>(read(end_pipe[0], &end, 1)));  // when the test is over
    const std::string& address = segment->address();
    const bool told = write(address_pipe[1], address.data(), address.size()) > 0;
    _exit(told && read(end_pipe[0], &end, 1) == 1 ? 0 : 1);
  }
  char address[256] = "";
  ASSERT_GT(read(address_pipe[0], address, sizeof(address) - 1), 0);
  const auto opened = SharedSegment::Open(address, folder_, kBytes);
  EXPECT_TRUE(opened->MakerIsAlive());
  ASSERT_EQ(kill(maker, SIGKILL), 0);
  ASSERT_EQ(waitpid(maker, nullptr, 0), maker);
  EXPECT_FALSE(opened->MakerIsAlive());
  for (const int end : {address_pipe[0], address_pipe[1], end_pipe[0], end_pipe[1]}) close(end);
}

TEST_F(SharedSegmentTest, WhatIsNotTheSegmentIsRefused) {
  const auto segment = SharedSegment::Make(folder_, kBytes);
  const auto other = SharedSegment::Make(folder_, kBytes);
  const std::string& address = segment->address();
  const size_t space = address.find(' ');
  EXPECT_THAT(MessageOf(address, folder_, 2 * kBytes), HasSubstr(" has 8192 bytes, expected 16384"));
  // As where containers number their processes alike.
  EXPECT_THAT(
      MessageOf(absl::StrCat(other->address().substr(0, other->address().find(' ')), address.substr(space)),
                folder_, kBytes),
      HasSubstr(" is another file than its process has said"));
  EXPECT_THAT(MessageOf(absl::StrCat("/proc/1/fd/99999", address.substr(space)), folder_, kBytes),
              HasSubstr("cannot open /proc/1/fd/99999"));
  // As on another host, or in a container with a /dev/shm of its own.
  EXPECT_THAT(MessageOf(address, "/proc", kBytes), HasSubstr(" lies on another file system than /proc"));
  EXPECT_THAT(MessageOf("nonsense", folder_, kBytes), HasSubstr("nonsense lies on another file system"));
}

TEST_F(SharedSegmentTest, AFolderThatIsNotThereIsNamed) {
  try {
    SharedSegment::Make("/nonexistent", kBytes);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "cannot make shared memory in /nonexistent: No such file or directory");
  }
}

}  // namespace
}  // namespace weft
