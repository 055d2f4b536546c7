#include "tools/faults/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/faults/processes.h"

namespace weft {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

void WriteFile(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// A job that has ended well, with one step.
class LeftoversTest : public testing::Test {
 protected:
  LeftoversTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(places_.temporary);
    WriteFile(step_ + "/rank-00000.safetensors", "elements");
    WriteFile(step_ + "/manifest.json", R"({"files":{"rank-00000.safetensors":{"bytes":8}}})");
    WriteFile(places_.checkpoints + "/latest", "step-000000003");
    WriteFile(places_.checkpoints + "/.lock", "");
    WriteFile(folder_ + "/hurt.log", "a line");
  }

  const std::string folder_ = testing::TempDir() + "/leftovers";
  const JobPlaces places_ = {.run_ids = {absl::StrCat("leftovers-", getpid())},
                             .shared_memory_before = SharedMemoryNames(),
                             .folder = folder_,
                             .temporary = folder_ + "/tmp",
                             .checkpoints = folder_ + "/hurt"};
  const std::string step_ = places_.checkpoints + "/step-000000003";
};

TEST_F(LeftoversTest, NothingOfAJobThatEndedWell) { EXPECT_THAT(LeftBy(places_), IsEmpty()); }

TEST_F(LeftoversTest, AProcess) {
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("TORCHELASTIC_RUN_ID", places_.run_ids[0].c_str(), 1);
    execl("/bin/sleep", "sleep", "60", nullptr);
    _exit(127);
  }
  // Its variables are those of this process until it has become another program.
  while (ProcessesOf(places_.run_ids[0]).empty() && IsAlive(pid)) usleep(1000);
  EXPECT_THAT(LeftBy(places_), UnorderedElementsAre(absl::StrCat("process ", pid)));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(LeftoversTest, TemporaryFilesAndFolders) {
  WriteFile(folder_ + "/hurt.safetensors.tmp", "");
  WriteFile(places_.temporary + "/weft_spawn.abc/error", "");
  WriteFile(places_.checkpoints + "/step-000000006.0.abc.tmp/manifest.json", R"({"files":{}})");
  EXPECT_THAT(LeftBy(places_),
              UnorderedElementsAre(folder_ + "/hurt.safetensors.tmp", places_.temporary + "/weft_spawn.abc",
                                   places_.checkpoints + "/step-000000006.0.abc.tmp"));
}

TEST_F(LeftoversTest, AStepWithoutAManifestOrTorn) {
  WriteFile(places_.checkpoints + "/step-000000006/rank-00000.safetensors", "elements");
  WriteFile(places_.checkpoints + "/step-000000009/manifest.json", R"({"fil)");
  std::filesystem::resize_file(step_ + "/rank-00000.safetensors", 7);
  EXPECT_THAT(LeftBy(places_),
              UnorderedElementsAre(places_.checkpoints + "/step-000000006",
                                   places_.checkpoints + "/step-000000009/manifest.json, which is torn",
                                   step_ + "/rank-00000.safetensors, which is torn"));
}

// Whatever its name; but not what a process has open, of another job then.
TEST_F(LeftoversTest, ANameInSharedMemory) {
  const std::string path = absl::StrCat("/dev/shm/sem.left-", getpid());
  const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(file, 0);
  EXPECT_THAT(LeftBy(places_), IsEmpty());
  close(file);
  EXPECT_THAT(LeftBy(places_), UnorderedElementsAre(path));
  unlink(path.c_str());
}

TEST_F(LeftoversTest, ANameOfAnotherUserIsNone) {
  if (geteuid() != 0) GTEST_SKIP() << "root alone gives files away";
  const std::string path = absl::StrCat("/dev/shm/sem.others-", getpid());
  WriteFile(path, "");
  const std::vector<std::string> before = LeftBy(places_);
  const bool is_given_away = chown(path.c_str(), 1, 1) == 0;
  const std::vector<std::string> after = LeftBy(places_);
  unlink(path.c_str());
  EXPECT_THAT(before, UnorderedElementsAre(path));
  if (!is_given_away) GTEST_SKIP() << "there is no other user in this namespace";
  EXPECT_THAT(after, IsEmpty());
}

}  // namespace
}  // namespace weft
