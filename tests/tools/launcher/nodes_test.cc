// Several weft_run processes as the nodes of one job, over the job's store on the loopback.

#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"
#include "tests/tools/launcher/launched_node.h"
#include "tests/tools/launcher/running_program.h"
#include "tools/launcher/processes/descendants.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

TEST(NodesTest, StaticNodesHaveTheRanksOfTheirNumbers) {
  const int port = FreePort();
  RunningProgram second(StaticNode(port, 1, kSaysWho));  // before the store is there
  ASSERT_FALSE(second.Await("life", 1, milliseconds(300)));
  RunningProgram first(StaticNode(port, 0, absl::StrCat(kSaysWho, "echo $MASTER_ADDR $MASTER_PORT")));
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_THAT(first.err(), HasSubstr("[rank 0] life 0: rank 0 of 4, local 0, node 0\n"));
  EXPECT_THAT(first.err(), HasSubstr("[rank 1] life 0: rank 1 of 4, local 1, node 0\n"));
  EXPECT_THAT(second.err(), HasSubstr("[rank 2] life 0: rank 2 of 4, local 0, node 1\n"));
  EXPECT_THAT(second.err(), HasSubstr("[rank 3] life 0: rank 3 of 4, local 1, node 1\n"));
  EXPECT_EQ(first.out(), absl::StrCat("127.0.0.1 ", port, "\n"));
  EXPECT_EQ(second.out(), "");  // rank 0 is elsewhere
}

TEST(NodesTest, AFailureRestartsAllNodesAndIsInTheStore) {
  const int port = FreePort();
  const std::string folder = NewFolder();
  const std::string script = absl::StrCat(
      kSaysWho, "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then until [ -e ", folder,
      "/go ]; do sleep 0.05; done; exit 0; fi; "
      "cd ",
      folder,
      "; touch $RANK; if [ $RANK = 3 ]; then until [ -e 0 ] && [ -e 1 ] && [ -e 2 ]; do sleep 0.05; "
      "done; kill -9 $$; fi; exec sleep 60");
  const std::vector<std::string> more = {"--max-restarts=1", "--rdzv-id=twice"};
  RunningProgram first(StaticNode(port, 0, script, more));
  RunningProgram second(StaticNode(port, 1, script, more));
  ASSERT_TRUE(first.Await("life 1: rank", 2)) << first.err();
  ASSERT_TRUE(second.Await("life 1: rank", 2)) << second.err();
  EXPECT_THAT(first.err(), HasSubstr("rank 3 was killed by signal 9 (SIGKILL) on "));
  {
    TcpStore store(absl::StrCat("127.0.0.1:", port), {.run_id = "twice"});
    EXPECT_EQ(store.Get("twice/0/exit/3", RunningProgram::kBound), "rank 3 was killed by signal 9 (SIGKILL)");
    EXPECT_EQ(store.Get("twice/0/exit/0", RunningProgram::kBound),
              "rank 0 was killed by signal 15 (SIGTERM)");
    EXPECT_FALSE(store.TryGet("twice/1/exit/0").has_value());
  }
  fclose(fopen((folder + "/go").c_str(), "w"));
  EXPECT_EQ(first.Wait(), 0);
  EXPECT_EQ(second.Wait(), 0);
}

TEST(NodesTest, TheLastFailureIsToldOnEveryNode) {
  const int port = FreePort();
  const std::string script = "[ $RANK = 2 ] || exec sleep 60; echo 'out of paper' >&2; exit 9";
  RunningProgram first(StaticNode(port, 0, script));
  RunningProgram second(StaticNode(port, 1, script));
  for (RunningProgram* node : {&first, &second}) {
    EXPECT_EQ(node->Wait(), 9);
    EXPECT_THAT(node->err(), HasSubstr("weft_run: the job failed: rank 2 exited with code 9 on "));
    EXPECT_TRUE(absl::EndsWith(node->err(), "  the end of its stderr:\n    out of paper\n")) << node->err();
  }
}

TEST(NodesTest, AProgramThatOneNodeLacksEndsTheJobOnAll) {
  const int port = FreePort();
  RunningProgram first(StaticNode(port, 0, "exec sleep 60", {"--max-restarts=3"}));
  std::vector<std::string> command = StaticNode(port, 1, "", {"--max-restarts=3"});
  command[command.size() - 3] = "/no/such/program";
  RunningProgram second(command);
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_EQ(first.Wait(), 1);
  EXPECT_THAT(first.err(), HasSubstr("cannot start /no/such/program: there is no such program"));
}

TEST(NodesTest, DynamicNodesGrowAndGoOnWithoutOneThatIsLost) {
  const int port = FreePort();
  const std::string script = absl::StrCat(kSaysWho, "trap 'exit 0' TERM; while true; do sleep 0.05; done");
  const std::vector<std::string> more = {"--rdzv-conf=last_call_timeout=0.2", "--max-restarts=1"};
  RunningProgram first(DynamicNode(port, "1:2", script, more));
  ASSERT_TRUE(first.Await("life 0: rank 0 of 1"));
  RunningProgram second(DynamicNode(port, "1:2", script, more));
  ASSERT_TRUE(second.Await("life 1: rank 1 of 2"));
  ASSERT_TRUE(first.Await("life 1: rank 0 of 2"));
  EXPECT_THAT(first.err(), HasSubstr("a node joins: all workers start again\n"));
  // The whole node at once, as if its machine had lost power.
  const std::vector<pid_t> processes = DescendantsOf(second.pid());
  const Clock::time_point lost = Clock::now();
  for (pid_t pid : processes) kill(pid, SIGSTOP);
  kill(second.pid(), SIGKILL);
  for (pid_t pid : processes) kill(pid, SIGKILL);
  ASSERT_TRUE(first.Await("life 2: rank 0 of 1")) << first.err();
  EXPECT_LT(Clock::now() - lost, seconds(40));
  EXPECT_THAT(first.err(),
              HasSubstr("was lost: no sign of life for 5 s: all workers start again (restart 1 of 1)"));
  kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.Wait(), 128 + SIGTERM) << first.err();
}

// A step and a save may take longer than a failure would leave them.
TEST(NodesTest, ANodeThatJoinsLeavesTheOthersTimeToSave) {
  RunningProgram store({"tools/weft_run", "store", "--host=127.0.0.1", "--port=0", "--dir=" + NewFolder()});
  const std::string script =
      absl::StrCat("trap '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 4; echo saved >&2; exit 0' TERM; ",
                   kSaysWho, "while true; do sleep 0.05; done");
  const std::vector<std::string> flags = {"--store=" + AddressOf(store), "--nnodes=1:2", "--max-restarts=0",
                                          "--rdzv-conf=last_call_timeout=0.2", "--stop-grace=40s"};
  RunningProgram first(WeftRun(flags, script));
  ASSERT_TRUE(first.Await("life 0: rank 0 of 1")) << first.err();
  RunningProgram second(WeftRun(flags, script));
  ASSERT_TRUE(first.Await("life 1: rank 0 of 2")) << first.err();
  EXPECT_TRUE(first.Await("saved", 1, milliseconds(0))) << first.err();
  for (RunningProgram* node : {&second, &first}) kill(node->pid(), SIGTERM);
  EXPECT_EQ(first.Wait(), 128 + SIGTERM) << first.err();
  EXPECT_EQ(second.Wait(), 128 + SIGTERM) << second.err();
}

TEST(NodesTest, WithoutTheNodeThatHoldsTheStoreTheOthersEnd) {
  const int port = FreePort();
  const std::string script = absl::StrCat(kSaysWho, "exec sleep 60");
  RunningProgram first(StaticNode(port, 0, script, {"--max-restarts=5"}));
  RunningProgram second(StaticNode(port, 1, script, {"--max-restarts=5"}));
  ASSERT_TRUE(first.Await("life 0", 2));
  ASSERT_TRUE(second.Await("life 0", 2));
  const Clock::time_point lost = Clock::now();
  kill(DescendantsOf(first.pid()).front(), SIGKILL);
  EXPECT_EQ(first.Wait(), 128 + SIGKILL);
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_LT(Clock::now() - lost, seconds(40));
  std::vector<std::string> said;
  for (const std::string& line : LinesOf(second.err())) {
    if (absl::StrContains(line, "store")) said.push_back(line);
  }
  EXPECT_THAT(said, testing::ElementsAre(
                        testing::AllOf(HasSubstr("weft_run: the job failed"),
                                       HasSubstr(" lost the job's store: the store at 127.0.0.1:"),
                                       HasSubstr(" is gone: its server has ended or cannot be reached"))));
}

TEST(NodesTest, ANodeThatIsStoppedIsLostAfterTheSuspicionTime) {
  const int port = FreePort();
  const std::string script = absl::StrCat(kSaysWho, "exec sleep 60");
  RunningProgram first(StaticNode(port, 0, script, {"--suspicion-time=1s"}));
  RunningProgram second(StaticNode(port, 1, script, {"--suspicion-time=1s"}));
  ASSERT_TRUE(first.Await("life 0", 2));
  ASSERT_TRUE(second.Await("life 0", 2));
  const pid_t agent = DescendantsOf(second.pid()).front();
  kill(agent, SIGSTOP);
  EXPECT_EQ(first.Wait(), 1);
  EXPECT_THAT(first.err(), HasSubstr("was lost: no sign of life for 1 s"));
  kill(agent, SIGKILL);
}

TEST(NodesTest, WorkersAreToldOfTheirTimes) {
  RunningProgram run(WeftRun({"--suspicion-time=2500ms", "--store-grace=90s"},
                             "echo $WEFT_SUSPICION_MS $WEFT_STORE_GRACE_MS"));
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_EQ(run.out(), "2500 90000\n");
}

TEST(NodesTest, AFullDiskUnderAStoreApartIsWaitedFor) {
  const std::string folder = NewFolder();
  const std::string command =
      absl::StrCat("trap '' XFSZ; exec tools/weft_run store --host=127.0.0.1 --port=0 --dir=", folder);
  RunningProgram store({"/bin/bash", "-c", command});
  const std::string script = absl::StrCat(
      kSaysWho, "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 0 ] && exec sleep 60; until [ -e ",
      folder, "/die ]; do sleep 0.05; done; exit 5");
  const std::vector<std::string> flags = {"--store=" + AddressOf(store), "--nnodes=2", "--max-restarts=1",
                                          "--suspicion-time=1s"};
  RunningProgram first(WeftRun(flags, script));
  RunningProgram second(WeftRun(flags, script));
  ASSERT_TRUE(first.Await("life 0")) << first.err();
  ASSERT_TRUE(second.Await("life 0")) << second.err();
  // A limit on its files is what a full disk is.
  rlimit limit = {};
  ASSERT_EQ(prlimit(store.pid(), RLIMIT_FSIZE, nullptr, &limit), 0);
  const rlim_t before = std::exchange(limit.rlim_cur, std::filesystem::file_size(folder + "/journal"));
  ASSERT_EQ(prlimit(store.pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  EXPECT_EQ(first.Wait(seconds(3)), -1) << first.err();  // with signs of life all the time
  fclose(fopen((folder + "/die").c_str(), "w"));
  RunningProgram& fails = absl::StrContains(first.err(), "rank 1 of 2") ? first : second;
  const std::string told = "weft_run: waiting: the store at 127.0.0.1:";
  ASSERT_TRUE(fails.Await(told)) << fails.err();
  EXPECT_THAT(fails.err(), HasSubstr("has no room: cannot write the store's journal"));
  limit.rlim_cur = before;
  ASSERT_EQ(prlimit(store.pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_FALSE(fails.Await(told, 2, milliseconds(0))) << fails.err();
}

TEST(NodesTest, WorkersAreStoppedAndSignalsHeardWhileTheStoreIsAway) {
  const std::string folder = NewFolder();
  RunningProgram store({"tools/weft_run", "store", "--host=127.0.0.1", "--port=0", "--dir=" + folder});
  const std::string script = absl::StrCat(
      kSaysWho, "if [ $RANK = 1 ]; then until [ -e ", folder, "/die ]; do sleep 0.05; done; exit 5; fi; ",
      "trap 'echo told >&2; exit 0' TERM; while true; do sleep 0.05; done");
  RunningProgram run(WeftRun(
      {"--store=" + AddressOf(store), "--nproc-per-node=2", "--store-grace=10m", "--suspicion-time=1s"},
      script));
  ASSERT_TRUE(run.Await("life 0", 2)) << run.err();
  kill(store.pid(), SIGKILL);
  ASSERT_EQ(store.Wait(), 128 + SIGKILL);
  fclose(fopen((folder + "/die").c_str(), "w"));
  EXPECT_TRUE(run.Await("told")) << run.err();
  EXPECT_EQ(run.Wait(seconds(2)), -1) << run.err();  // the other nodes are to hear of it
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Wait(), 128 + SIGTERM);
}

TEST(NodesTest, WhoWaitsForNodesCanBeStopped) {
  RunningProgram gathering(StaticNode(FreePort(), 0, "true"));
  RunningProgram connecting(StaticNode(FreePort(), 1, "true"));
  EXPECT_TRUE(gathering.Await("weft_run: waiting: 1 of 2 nodes are at 127.0.0.1:"));
  EXPECT_TRUE(connecting.Await("weft_run: waiting for the job's store at 127.0.0.1:"));
  kill(gathering.pid(), SIGINT);
  kill(connecting.pid(), SIGTERM);
  EXPECT_EQ(gathering.Wait(), 128 + SIGINT);
  EXPECT_EQ(connecting.Wait(), 128 + SIGTERM);
}

TEST(NodesTest, TooFewNodesAreAnError) {
  RunningProgram run(StaticNode(FreePort(), 0, "true", {"--rdzv-conf=join_timeout=0.5"}));
  EXPECT_EQ(run.Wait(), 1);
  EXPECT_THAT(run.err(), HasSubstr("error: waited 0.5 s: 1 of 2 nodes are at 127.0.0.1:"));
}

TEST(NodesTest, AnAddressThatIsNoneIsSaidAtOnce) {
  // Longer than a name's parts may be, so that no name server is asked.
  const std::string no_host(64, 'x');
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--nnodes=1:2", absl::StrCat("--rdzv-endpoint=", no_host, ":29400")},
        std::vector<std::string>{"--nnodes=2", "--node-rank=1", "--master-addr=" + no_host}}) {
    RunningProgram run(WeftRun(flags, "true"));
    EXPECT_EQ(run.Wait(), 1) << run.err();
    EXPECT_THAT(run.err(), HasSubstr(absl::StrCat("error: cannot resolve '", no_host, "': ")));
    EXPECT_THAT(run.err(), HasSubstr("; --rdzv_conf=name_timeout=SECONDS waits until it has an address\n"));
  }
}

TEST(NodesTest, ANameMayGetItsAddressLater) {
  const std::string no_host(64, 'x');
  const std::vector<std::string> later = {"--nnodes=2", "--node-rank=1", "--master-addr=" + no_host,
                                          "--rdzv-conf=name_timeout=60"};
  RunningProgram run(WeftRun(later, "true"));
  EXPECT_TRUE(run.Await(absl::StrCat("weft_run: waiting: cannot resolve '", no_host, "': "))) << run.err();
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Wait(), 128 + SIGTERM);
  std::vector<std::string> soon = later;
  soon.back() = "--rdzv-conf=name_timeout=0.3";
  RunningProgram given_up(WeftRun(soon, "true"));
  EXPECT_EQ(given_up.Wait(), 1);
  EXPECT_THAT(given_up.err(), HasSubstr(absl::StrCat("error: cannot resolve '", no_host, "': ")));
}

TEST(NodesTest, StrangersAndTakenPortsAreClearErrors) {
  const int port = FreePort();
  RunningProgram first(StaticNode(port, 0, "exec sleep 60", {"--rdzv-id=a"}));
  ASSERT_TRUE(first.Await("weft_run: "));  // that nobody is checked
  RunningProgram stranger(StaticNode(port, 1, "true", {"--rdzv-id=b", "--rdzv-conf=join_timeout=8"}));
  EXPECT_EQ(stranger.Wait(), 1);
  EXPECT_THAT(stranger.err(), HasSubstr("error: "));
  EXPECT_THAT(stranger.err(), HasSubstr("run"));
  RunningProgram taken(StaticNode(port, 0, "true", {"--rdzv-id=a"}));
  EXPECT_EQ(taken.Wait(), 1);
  EXPECT_THAT(taken.err(), HasSubstr(absl::StrCat(":", port)));
  EXPECT_THAT(taken.err(), Not(HasSubstr("rank")));
  RunningProgram second(StaticNode(port, 1, "exit 3", {"--rdzv-id=a"}));  // and nothing was disturbed
  EXPECT_EQ(second.Wait(), 3);
  EXPECT_EQ(first.Wait(), 3);
}

TEST(NodesTest, ATokenIsAskedFor) {
  const int port = FreePort();
  const auto with_token = [](const std::string& token, std::vector<std::string> command) {
    command.insert(command.begin(), {"/usr/bin/env", absl::StrCat("WEFT_STORE_TOKEN=", token)});
    return command;
  };
  RunningProgram first(with_token("secret", StaticNode(port, 0, "echo $WEFT_STORE_TOKEN")));
  RunningProgram wrong(with_token("guess", StaticNode(port, 1, "true")));
  EXPECT_EQ(wrong.Wait(), 1);
  EXPECT_THAT(wrong.err(), HasSubstr("token"));
  RunningProgram second(with_token("secret", StaticNode(port, 1, "true")));
  EXPECT_EQ(second.Wait(), 0);
  EXPECT_EQ(first.Wait(), 0);
  EXPECT_EQ(first.out(), "secret\n");
}

// Whether somebody can listen at that port of the loopback, if need be after a while.
bool GetsFree(int port, milliseconds bound) {
  const Clock::time_point deadline = Clock::now() + bound;
  for (;;) {
    try {
      TcpStoreServer({.port = port});
      return true;
    } catch (const Error&) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(milliseconds(20));
    }
  }
}

// The next job at the same address, which other nodes may begin before this one's output is read, would meet its store.
TEST(NodesTest, TheStoreEndsBeforeTheOutputIsRead) {
  const int port = FreePort();
  // More than a pipe holds, and less than weft_run does.
  RunningProgram first(StaticNode(port, 0, "[ $RANK != 0 ] || seq 1 30000"));
  RunningProgram second(StaticNode(port, 1, "true"));
  EXPECT_EQ(second.Wait(), 0) << second.err();
  EXPECT_TRUE(GetsFree(port, seconds(20)));
  EXPECT_FALSE(IsGone(first.pid(), milliseconds(0)));
  EXPECT_EQ(first.Wait(), 0) << first.err();
  EXPECT_EQ(LinesOf(first.out()).size(), 30000u);
}

}  // namespace
}  // namespace weft
