// weft_run processes that are told to stop, one of several nodes of a job.

#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/launcher/launched_node.h"
#include "tests/tools/launcher/running_program.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(LeavingNodesTest, ANodeThatIsToldToStopStopsTheOthers) {
  const int port = FreePort();
  const std::string script = absl::StrCat(kSaysWho, "exec sleep 60");
  RunningProgram first(StaticNode(port, 0, script));
  RunningProgram second(StaticNode(port, 1, script));
  ASSERT_TRUE(first.Await("life 0", 2));
  ASSERT_TRUE(second.Await("life 0", 2));
  kill(second.pid(), SIGINT);
  EXPECT_EQ(second.Wait(), 128 + SIGINT);
  EXPECT_EQ(first.Wait(), 128 + SIGINT);
  EXPECT_THAT(first.err(), HasSubstr("was told to stop (signal 2)"));
}

TEST(LeavingNodesTest, ANodeThatIsToldToStopCostsNoRestartWhereOthersAreEnough) {
  RunningProgram store({"tools/weft_run", "store", "--host=127.0.0.1", "--port=0", "--dir=" + NewFolder()});
  const std::string script = absl::StrCat(kSaysWho, "trap 'exit 0' TERM; while true; do sleep 0.05; done");
  const std::vector<std::string> flags = {"--store=" + AddressOf(store), "--nnodes=1:2", "--max-restarts=0"};
  RunningProgram first(WeftRun(flags, script));
  RunningProgram second(WeftRun(flags, script));
  ASSERT_TRUE(first.Await("life 0")) << first.err();
  ASSERT_TRUE(second.Await("life 0")) << second.err();
  kill(second.pid(), SIGTERM);
  EXPECT_EQ(second.Wait(), 128 + SIGTERM);
  ASSERT_TRUE(first.Await("life 1: rank 0 of 1")) << first.err();
  EXPECT_THAT(first.err(), HasSubstr("was told to stop (signal 15): all workers start again\n"));
  kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.Wait(), 128 + SIGTERM) << first.err();
}

// Its agent is sent SIGTERM then, which is nobody's wish.
TEST(LeavingNodesTest, ANodeWhoseGuardIsKilledIsAFailure) {
  RunningProgram store({"tools/weft_run", "store", "--host=127.0.0.1", "--port=0", "--dir=" + NewFolder()});
  const std::string script = absl::StrCat(kSaysWho, "trap 'exit 0' TERM; while true; do sleep 0.05; done");
  const std::vector<std::string> flags = {"--store=" + AddressOf(store), "--nnodes=1:2", "--max-restarts=1"};
  RunningProgram first(WeftRun(flags, script));
  RunningProgram second(WeftRun(flags, script));
  ASSERT_TRUE(first.Await("life 0")) << first.err();
  ASSERT_TRUE(second.Await("life 0")) << second.err();
  kill(second.pid(), SIGKILL);
  ASSERT_TRUE(first.Await("life 1: rank 0 of 1")) << first.err();
  EXPECT_THAT(first.err(),
              HasSubstr("was lost: its weft_run was killed: all workers start again (restart 1 of 1)"));
  kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.Wait(), 128 + SIGTERM) << first.err();
}

// It looks every four seconds whether the other has come: that one has begun already.
TEST(LeavingNodesTest, ANodeThatIsToldToStopBeforeItKnowsOfTheGenerationIsNoFailure) {
  RunningProgram store({"tools/weft_run", "store", "--host=127.0.0.1", "--port=0", "--dir=" + NewFolder()});
  const std::string script = absl::StrCat(kSaysWho, "trap 'exit 0' TERM; while true; do sleep 0.05; done");
  std::vector<std::string> flags = {"--store=" + AddressOf(store), "--nnodes=1:2", "--max-restarts=0"};
  flags.emplace_back("--monitor-interval=4");
  RunningProgram slow(WeftRun(flags, script));
  ASSERT_TRUE(slow.Await("weft_run: waiting: 1 of 1 nodes")) << slow.err();  // and four seconds more
  flags.pop_back();
  RunningProgram other(WeftRun(flags, script));
  ASSERT_TRUE(other.Await("life 0: rank 1 of 2")) << other.err();
  kill(slow.pid(), SIGTERM);
  EXPECT_EQ(slow.Wait(), 128 + SIGTERM) << slow.err();
  ASSERT_TRUE(other.Await("life 1: rank 0 of 1")) << other.err();
  EXPECT_THAT(other.err(), HasSubstr("was told to stop (signal 15): all workers start again\n"));
  kill(other.pid(), SIGTERM);
  EXPECT_EQ(other.Wait(), 128 + SIGTERM) << other.err();
}

// A save takes all ranks, and longer than a failure would leave them.
TEST(LeavingNodesTest, ANodeThatIsToldToStopLeavesTheOthersAsLongToSave) {
  const int port = FreePort();
  const std::string script = absl::StrCat("trap 'echo told >&2; sleep 5; echo saved >&2; exit 0' TERM; ",
                                          kSaysWho, "while true; do sleep 0.05; done");
  RunningProgram first(StaticNode(port, 0, script));
  RunningProgram second(StaticNode(port, 1, script, {"--stop-grace=40s"}));
  ASSERT_TRUE(first.Await("life 0", 2));
  ASSERT_TRUE(second.Await("life 0", 2));
  kill(second.pid(), SIGTERM);
  ASSERT_TRUE(first.Await("told", 2)) << first.err();
  EXPECT_EQ(second.Wait(), 128 + SIGTERM);
  EXPECT_EQ(first.Wait(), 128 + SIGTERM);
  EXPECT_TRUE(first.Await("saved", 2, milliseconds(0))) << first.err();
  EXPECT_TRUE(second.Await("saved", 2, milliseconds(0))) << second.err();
}

}  // namespace
}  // namespace weft
