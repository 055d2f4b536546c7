// Worlds of processes over gloo: they come to life, and every way in which one can go wrong ends in the right
// message on every other rank within its bound.

#include <signal.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"
#include "tests/message_of.h"
#include "tests/runtime/launch/processes.h"
#include "tests/runtime/store/certificates.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr int kRanks = 4;
constexpr double kBoundSeconds = 30;  // of what need not wait for the timeout of a minute
constexpr char kProgram[] = "tests/runtime/launch/process_program";

struct JobOptions {
  int port = 0;             // 0: one that is free
  int timeout_ms = 60'000;  // of collectives
  std::map<std::string, std::string> variables = {};
};

std::map<std::string, std::string> Environment(int rank, const JobOptions& job) {
  std::map<std::string, std::string> variables = {
      {"RANK", absl::StrCat(rank)},         {"WORLD_SIZE", absl::StrCat(kRanks)},
      {"LOCAL_RANK", absl::StrCat(rank)},   {"LOCAL_WORLD_SIZE", absl::StrCat(kRanks)},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", absl::StrCat(job.port)},
      {"TEST_RANKS", absl::StrCat(kRanks)}, {"TEST_TIMEOUT_MS", absl::StrCat(job.timeout_ms)}};
  for (const auto& [name, value] : job.variables) variables[name] = value;
  return variables;
}

// Runs a job whose `rank` meets `how`, without a launcher: rank 0 keeps the store.
std::vector<ProcessEnd> RunJob(const std::string& how, int rank, JobOptions job = {},
                               const std::vector<int>& do_not_await = {}) {
  if (job.port == 0) job.port = FreePort();
  Processes processes;
  for (int i = 0; i < kRanks; ++i) {
    processes.Start({kProgram, how, absl::StrCat(rank)}, Environment(i, job));
  }
  return processes.Wait(seconds(60), do_not_await);
}

// Every rank but `rank` ended with an error that holds `part`.
void ExpectErrors(const std::vector<ProcessEnd>& ends, int rank, const std::vector<std::string>& parts) {
  for (int i = 0; i < kRanks; ++i) {
    if (i == rank) continue;
    EXPECT_EQ(ends[i].exit_code, 1) << "rank " << i << ", signal " << ends[i].signal;
    for (const std::string& part : parts) {
      EXPECT_NE(ends[i].err.find(part), std::string::npos) << "rank " << i << ": " << part << "\nis not in\n"
                                                           << ends[i].err;
    }
    EXPECT_EQ(ends[i].out.find("done"), std::string::npos);
  }
}

TEST(ProcessWorldTest, AJobRunsToItsEnd) {
  for (const ProcessEnd& end : RunJob("nothing", 0)) {
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, "joined\ndone\n");
    EXPECT_EQ(end.err, "");
  }
}

// A rank may have a connection to each other one, per group: a shell's soft limit is too low for many.
TEST(ProcessWorldTest, TheSoftLimitOfOpenFilesIsRaised) {
  const int port = FreePort();
  Processes processes;
  for (int i = 0; i < kRanks; ++i) {
    processes.Start({"/bin/bash", "-c", "ulimit -Sn 100; exec \"$0\" files", kProgram},
                    Environment(i, {.port = port}));
  }
  for (const ProcessEnd& end : processes.Wait(seconds(60))) {
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, "opened\n");
  }
}

void ExpectDoneFiveTimes(const std::vector<ProcessEnd>& ends) {
  std::string expected;
  for (int i = 0; i < 5; ++i) expected += "joined\ndone\n";
  for (const ProcessEnd& end : ends) {
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, expected);
    EXPECT_EQ(end.err, "");
  }
}

// Each world has a store of its own at the same place: no rank is in the next one before the store of the last has ended.
TEST(ProcessWorldTest, WorldsFollowOneAnother) { ExpectDoneFiveTimes(RunJob("again", 0)); }

TEST(ProcessWorldTest, SoTheyDoInALaunchersStore) {
  TcpStoreServer server({.run_id = "weft"});
  ExpectDoneFiveTimes(RunJob("again", 0, {.port = server.port(), .variables = {{"WEFT_AGENT_STORE", "1"}}}));
  TcpStore launcher(server.address(), {.run_id = "weft"});
  EXPECT_EQ(launcher.TryGet("weft/0/num_worlds/0"), "5");
}

TEST(ProcessWorldTest, RanksShareAStore) {
  for (const ProcessEnd& end : RunJob("count", 0)) {
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, "counted\n");
  }
}

TEST(ProcessWorldTest, AFailedRankEndsWaitsAtTheStore) {
  const std::vector<ProcessEnd> ends = RunJob("store", 2);
  EXPECT_EQ(ends[2].exit_code, 1);
  ExpectErrors(ends, 2, {"rank 2 failed: the disk is full"});
  for (int rank : {0, 1, 3}) EXPECT_LT(ends[rank].seconds - ends[2].seconds, kBoundSeconds) << rank;
}

TEST(ProcessWorldTest, AKilledRankIsNamedOnEveryOther) {
  const std::vector<ProcessEnd> ends = RunJob("kill", 2);
  EXPECT_EQ(ends[2].signal, SIGKILL);
  ExpectErrors(ends, 2, {"rank 2"});
  for (int rank : {0, 1, 3}) EXPECT_LT(ends[rank].seconds - ends[2].seconds, kBoundSeconds) << rank;
}

TEST(ProcessWorldTest, SoIsOneThatLeavesByItself) {
  const std::vector<ProcessEnd> ends = RunJob("exit", 1);
  EXPECT_EQ(ends[1].exit_code, 0);
  ExpectErrors(ends, 1, {"rank 1"});
}

TEST(ProcessWorldTest, RankZeroTakesTheStoreWithIt) {
  const std::vector<ProcessEnd> ends = RunJob("kill", 0);
  EXPECT_EQ(ends[0].signal, SIGKILL);
  for (int rank : {1, 2, 3}) {
    EXPECT_EQ(ends[rank].exit_code, 1);
    EXPECT_NE(ends[rank].err.find("error: "), std::string::npos) << ends[rank].err;
    EXPECT_LT(ends[rank].seconds - ends[0].seconds, kBoundSeconds) << rank;
  }
}

TEST(ProcessWorldTest, AnExceptionIsToldToTheOthers) {
  const std::vector<ProcessEnd> ends = RunJob("throw", 3);
  EXPECT_EQ(ends[3].exit_code, 1);
  EXPECT_NE(ends[3].err.find("error: the disk is full"), std::string::npos) << ends[3].err;
  ExpectErrors(ends, 3, {"rank 3", "the disk is full"});
}

TEST(ProcessWorldTest, AnExceptionInRankZeroIsToldBeforeItsStoreEnds) {
  const std::vector<ProcessEnd> ends = RunJob("throw", 0);
  ExpectErrors(ends, 0, {"rank 0", "the disk is full"});
}

TEST(ProcessWorldTest, AMismatchIsAnErrorOnAll) {
  ExpectErrors(RunJob("other", 2), -1,
               {"rank 0 called all_reduce(f32, sum, count 300000)", "rank 2 called barrier()"});
  ExpectErrors(RunJob("size", 2), -1, {"count 300000", "rank 2 called all_reduce(f32, sum, count 77)"});
}

TEST(ProcessWorldTest, SkippingACollectiveIsAnErrorOnAll) {
  ExpectErrors(RunJob("skip", 1), -1, {"rank 1 called all_reduce(f32, sum, count 1000)", "count 300000"});
}

// Rank 0 waits in tp for rank 3, which waits in dp with the others. The timeout is a minute.
TEST(ProcessWorldTest, ADeadlockEndsWithOneVerdictInSeconds) {
  const std::vector<ProcessEnd> ends = RunJob("circle", 0);
  ExpectErrors(ends, -1, {"deadlock: "});
  int num_told = 0;
  for (const ProcessEnd& end : ends) {
    num_told += end.err.find("weft: deadlock: ") != std::string::npos;
    EXPECT_LT(end.seconds, kBoundSeconds);
  }
  EXPECT_EQ(num_told, 1);
}

// Rank 1 comes when it has been told of, after 4 s or, where a busy machine has held up another rank too,
// later.
TEST(ProcessWorldTest, ASlowRankIsNamedWhileTheOthersWait) {
  const std::string go = testing::TempDir() + "/go";
  const JobOptions job = {.port = FreePort(), .variables = {{"TEST_GO", go}}};
  Processes processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    processes.Start({kProgram, "slow", "1"}, Environment(rank, job));
  }
  EXPECT_TRUE(processes.AwaitErr(
      "while ranks 0, 2, 3 wait in all_reduce(f32, sum, count 300000) #6 on axis dp", seconds(40)));
  std::ofstream(go).put('\n');
  std::string told;
  for (const ProcessEnd& end : processes.Wait(seconds(60))) {
    EXPECT_EQ(end.exit_code, 0) << end.err;
    told += end.err;
  }
  EXPECT_NE(told.find("weft: waiting: rank 1 has not entered (last seen: data loader, "), std::string::npos)
      << told;
}

// What is stopped gives no sign of life: the store takes it for dead within 6 s.
TEST(ProcessWorldTest, AStoppedRankIsNamed) {
  const std::vector<ProcessEnd> ends = RunJob("stop", 2, {}, /*do_not_await=*/{2});
  EXPECT_EQ(ends[2].signal, SIGKILL);  // by the test, at the end
  ExpectErrors(ends, 2, {"rank 2"});
}

TEST(ProcessWorldTest, AStoppedRankIsNamedByATimeoutThatIsSooner) {
  const std::vector<ProcessEnd> ends = RunJob("stop", 2, {.timeout_ms = 1500}, /*do_not_await=*/{2});
  for (int rank : {0, 1, 3}) {
    EXPECT_EQ(ends[rank].exit_code, 1);
    EXPECT_NE(ends[rank].err.find("2"), std::string::npos) << ends[rank].err;
  }
}

TEST(ProcessWorldTest, APortThatIsTakenIsNamed) {
  TcpStoreServer other({.host = "127.0.0.1"});
  JobOptions job;
  job.port = other.port();
  Processes processes;
  processes.Start({kProgram, "nothing"}, Environment(0, job));
  const ProcessEnd end = processes.Wait(seconds(60))[0];
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_NE(end.err.find(absl::StrCat(other.port())), std::string::npos) << end.err;
}

TEST(ProcessWorldTest, ASlowJoinerIsWaitedFor) {
  const JobOptions job = {.port = FreePort()};
  Processes processes;
  for (int rank : {1, 2, 3}) processes.Start({kProgram, "nothing"}, Environment(rank, job));
  std::this_thread::sleep_for(milliseconds(1500));
  processes.Start({kProgram, "nothing"}, Environment(0, job));
  for (const ProcessEnd& end : processes.Wait(seconds(60))) EXPECT_EQ(end.out, "joined\ndone\n") << end.err;
}

TEST(ProcessWorldTest, AWrongTokenIsRefused) {
  TcpStoreServer server({.run_id = "weft", .token = "right"});
  JobOptions job = {.port = server.port()};
  job.variables = {{"WEFT_AGENT_STORE", "1"}, {"WEFT_STORE_TOKEN", "wrong"}};
  Processes processes;
  processes.Start({kProgram, "nothing"}, Environment(1, job));
  const ProcessEnd end = processes.Wait(seconds(60))[0];
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_NE(end.err.find("token"), std::string::npos) << end.err;
}

TEST(ProcessWorldTest, AJobUnderTlsRunsAndStrangersStayOut) {
  const Certificates authority;
  const StoreTls tls = authority.Sign("job", "IP:127.0.0.1");
  JobOptions job = {.port = FreePort()};
  job.variables = {{"WEFT_STORE_CA", tls.ca_file},
                   {"WEFT_STORE_CERT", tls.certificate_file},
                   {"WEFT_STORE_KEY", tls.key_file}};
  for (const ProcessEnd& end : RunJob("nothing", 0, job)) EXPECT_EQ(end.out, "joined\ndone\n") << end.err;
  TcpStoreServer server({.host = "127.0.0.1", .run_id = "weft", .tls = tls});
  EXPECT_NE(MessageOf([&] { TcpStore(server.address(), {.run_id = "weft", .connect_timeout = seconds(2)}); }),
            "no error");
}

TEST(ProcessWorldTest, TheLaunchersWordOnADeathIsPassedOn) {
  TcpStoreServer server({.run_id = "weft"});
  TcpStore launcher(server.address(), {.run_id = "weft"});
  JobOptions job = {.port = server.port()};
  job.variables = {{"WEFT_AGENT_STORE", "1"}};
  Processes processes;
  for (int i = 0; i < kRanks; ++i) processes.Start({kProgram, "code", "1"}, Environment(i, job));
  launcher.Set("weft/0/exit/1", "rank 1 exited with code 9");
  const std::vector<ProcessEnd> ends = processes.Wait(seconds(60));
  EXPECT_EQ(ends[1].exit_code, 9);
  // By the store or, sooner, by the connection: both name the rank.
  ExpectErrors(ends, 1, {"rank 1"});
}

TEST(ProcessWorldTest, FlightRecordsAreLeftBehind) {
  const std::string folder = testing::TempDir() + "/records";
  JobOptions job;
  job.variables = {{"WEFT_FLIGHT_DIR", folder}, {"TORCHELASTIC_RESTART_COUNT", "3"}};
  RunJob("throw", 3, job);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ifstream file(absl::StrCat(folder, "/flight_rank_", rank, ".json"));
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    EXPECT_THAT(text, HasSubstr("\"generation\": 3,\n")) << rank;
    EXPECT_THAT(text, HasSubstr("\"run_id\": \"weft\",\n")) << rank;
  }
}

TEST(ProcessWorldTest, AWorldOfAnotherSizeIsRefused) {
  JobOptions job = {.port = FreePort()};
  job.variables = {{"TEST_RANKS", "3"}};
  Processes processes;
  processes.Start({kProgram, "nothing"}, Environment(0, job));
  const ProcessEnd end = processes.Wait(seconds(60))[0];
  EXPECT_EQ(
      end.err,
      "error: the launcher (weft_run, torchrun or whatever else has set RANK) has started 4 processes, but "
      "the mesh has 3 ranks: start one process per rank, 3, or change the mesh (--mesh)\n");
}

}  // namespace
}  // namespace weft
