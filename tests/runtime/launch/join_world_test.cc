// Worlds by arguments and spawned ranks, as processes: they come to life, end, are made anew in the same processes, and each
// mistake has its line on every rank that it concerns.

#include "runtime/launch/join_world.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/launch/spawn_ranks.h"
#include "runtime/launch/world_meeting.h"
#include "runtime/store/tcp_store.h"
#include "tests/message_of.h"
#include "tests/runtime/launch/processes.h"

namespace weft {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kProgram[] = "tests/runtime/launch/worlds_program";

class PlaceTest : public testing::TestWithParam<std::string> {
 protected:
  PlaceTest() {
    std::string folder = "/tmp/weft_worlds.XXXXXX";
    WEFT_CHECK(mkdtemp(folder.data()) != nullptr, "no folder");
    folder_ = folder;
    address_ = GetParam() == "tcp" ? absl::StrCat("tcp://127.0.0.1:", FreePort())
                                   : absl::StrCat("file://", folder_, "/meet");
  }
  ~PlaceTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string address_;
};

// The ends of processes with those arguments after the address.
std::vector<ProcessEnd> Outcome(const std::string& address,
                                const std::vector<std::vector<std::string>>& ranks) {
  Processes processes;
  for (const std::vector<std::string>& arguments : ranks) {
    std::vector<std::string> words = {kProgram, address};
    words.insert(words.end(), arguments.begin(), arguments.end());
    processes.Start(words, {});
  }
  return processes.Wait(seconds(60));
}

TEST_P(PlaceTest, WorldsOneAfterAnotherAtOnePlace) {
  const std::vector<ProcessEnd> ends = Outcome(address_, {{"2", "3", "5"}, {"0", "3", "5"}, {"1", "3", "5"}});
  for (const ProcessEnd& end : ends) EXPECT_EQ(end.exit_code, 0) << end.err;
  std::string expected;
  for (int time = 0; time < 5; ++time) {
    absl::StrAppend(&expected, "rank ", time % 2 == 0 ? 0 : 2, " of 3: 6\n");
  }
  EXPECT_EQ(ends[1].out, expected);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/meet"));
}

TEST_P(PlaceTest, AWorldOfOne) {
  const std::vector<ProcessEnd> ends = Outcome(address_, {{"0", "1", "3"}});
  EXPECT_EQ(ends[0].out, "rank 0 of 1: 1\nrank 0 of 1: 1\nrank 0 of 1: 1\n") << ends[0].err;
}

TEST_P(PlaceTest, TwoRanksOfTheSameNumber) {
  Processes processes;
  for (int i = 0; i < 2; ++i) processes.Start({kProgram, address_, "1", "2", "1", "4000"}, {});
  processes.Start({kProgram, address_, "0", "2", "1", "4000"}, {});
  const std::vector<ProcessEnd> ends = processes.Wait(seconds(60));
  EXPECT_EQ(ends[0].exit_code + ends[1].exit_code, 1) << ends[0].err << ends[1].err;
  EXPECT_EQ(ends[2].exit_code, 0) << ends[2].err;
  // It may have come when the world was complete and rank 0 no longer there.
  EXPECT_THAT(ends[0].err + ends[1].err,
              testing::AnyOf(AllOf(HasSubstr("rank 1 of the world at "), HasSubstr("already: process "),
                                   HasSubstr("needs a number of its own")),
                             HasSubstr("rank 1 has found no rank 0 at "), HasSubstr("is gone: its server")));
}

TEST_P(PlaceTest, TwoRanksZero) {
  Processes processes;
  // Each would wait for rank 1.
  for (int i = 0; i < 2; ++i) processes.Start({kProgram, address_, "0", "2", "1", "6000"}, {});
  const std::vector<ProcessEnd> ends = processes.Wait(seconds(60));
  EXPECT_THAT(ends[0].err + ends[1].err,
              AllOf(HasSubstr("rank 0 of the world at "), HasSubstr("needs a number of its own"),
                    HasSubstr("is not complete after 6 s: there is no rank 1")));
}

TEST_P(PlaceTest, RanksToldOfDifferentSizesAllHearIt) {
  const std::vector<ProcessEnd> ends = Outcome(address_, {{"0", "2", "1"}, {"1", "3", "1"}});
  for (const ProcessEnd& end : ends) {
    EXPECT_EQ(end.exit_code, 1);
    EXPECT_THAT(end.err, AllOf(HasSubstr("was told of a world of "), HasSubstr("others of one of ")));
  }
}

TEST_P(PlaceTest, WhoDoesNotComeIsNamedOnAll) {
  const std::vector<ProcessEnd> ends = Outcome(address_, {{"0", "4", "1", "1500"}, {"2", "4", "1", "1500"}});
  for (const ProcessEnd& end : ends) {
    EXPECT_EQ(end.exit_code, 1);
    EXPECT_THAT(end.err, HasSubstr("is not complete after 1.5 s: there is no rank 1, 3"));
  }
  EXPECT_THAT(Outcome(address_, {{"1", "2", "1", "500"}})[0].err,
              HasSubstr("rank 1 has found no rank 0 at "));
}

// Rank 1 comes before rank 0, and tries again; rank 0 waits for rank 2, which comes last.
TEST_P(PlaceTest, ATimeoutMayBeForEver) {
  const std::string for_ever = absl::StrCat(std::chrono::milliseconds::max().count());
  Processes processes;
  for (const char* const rank : {"1", "0", "2"}) {
    processes.Start({kProgram, address_, rank, "3", "1", for_ever}, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  }
  for (const ProcessEnd& end : processes.Wait(seconds(60))) EXPECT_EQ(end.exit_code, 0) << end.err;
}

TEST_P(PlaceTest, MadeAnewAfterAFailure) {
  Processes processes;
  for (const char* const rank : {"0", "1"}) {
    processes.Start({kProgram, "again", address_, rank}, {{"WEFT_FLIGHT_DIR", folder_}});
  }
  const std::vector<ProcessEnd> ends = processes.Wait(seconds(60));
  EXPECT_EQ(ends[1].out, "rank 1 of 2: 3\nthe disk is full\nrank 1 of 2: 3\n") << ends[1].err;
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].err;
  EXPECT_THAT(ends[0].out, AllOf(HasSubstr("rank 1 failed: "), HasSubstr("\nrank 0 of 2: 3\n")));
  for (const int rank : {0, 1}) {  // of the world that failed
    std::ifstream file(absl::StrCat(folder_, "/flight_rank_", rank, ".json"));
    const std::string record((std::istreambuf_iterator<char>(file)), {});
    EXPECT_THAT(record, HasSubstr("\"run_id\": \"weft.world.0\"")) << rank;
  }
}

// Between the meeting and the world.
TEST_P(PlaceTest, ARankWhoseWorldCannotBeMadeIsNamed) {
  Processes processes;
  processes.Start({kProgram, "hear", address_, "0", "2"}, {});
  processes.Start({kProgram, "hear", address_, "1", "2", "bad"}, {});
  const std::vector<ProcessEnd> ends = processes.Wait(seconds(60));
  const std::string why = "WorldOptions::comm_timeout is above 0, got 0 ms";
  EXPECT_EQ(ends[1].exit_code, 1);
  EXPECT_THAT(ends[1].err, HasSubstr(why));
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].err;
  EXPECT_THAT(ends[0].out, HasSubstr(absl::StrCat("rank 1 failed: ", why)));
}

INSTANTIATE_TEST_SUITE_P(Places, PlaceTest, testing::Values("tcp", "file"));

// Rank 1 dies while it waits for rank 2, with which all have come.
TEST(JoinWorldTest, ARankThatDiesWhileItWaitsForOthersIsNamed) {
  const std::string place = absl::StrCat("127.0.0.1:", FreePort());
  Processes processes;
  for (const char* const rank : {"0", "1"}) {
    processes.Start({kProgram, "hear", absl::StrCat("tcp://", place), rank, "3"}, {});
  }
  {
    TcpStore store(place, {.run_id = "weft.world.0"});
    store.Get(absl::StrCat("weft.world.0/0/", MeetingKey(1)), seconds(60));
  }
  processes.Signal(1, SIGKILL);
  processes.Start({kProgram, "hear", absl::StrCat("tcp://", place), "2", "3"}, {});
  const std::vector<ProcessEnd> ends = processes.Wait(seconds(60));
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].err;
  EXPECT_THAT(ends[0].out, HasSubstr("rank 1 has died"));
  EXPECT_EQ(ends[2].signal, 0) << "it has waited for ever";
}

TEST(JoinWorldTest, AStrayRankThatEndsWithoutAFarewellEndsNoWorld) {
  const std::string place = absl::StrCat("127.0.0.1:", FreePort());
  const std::string address = absl::StrCat("tcp://", place);
  Processes processes;
  for (const char* const rank : {"0", "1"}) processes.Start({kProgram, "hear", address, rank, "2"}, {});
  {
    TcpStore store(place, {.run_id = "weft.world.0"});
    store.Get("weft.world.0/0/meet/verdict", seconds(60));
    processes.Start({kProgram, "stray", address, "1", "2"}, {});
    processes.Start({kProgram, "stray", address, "1", "3"}, {});
    EXPECT_TRUE(processes.AwaitErr("needs a number of its own", seconds(60)));
    EXPECT_TRUE(processes.AwaitErr("was told of a world of 3 ranks", seconds(60)));
    EXPECT_THAT(MessageOf([&] { store.Get("weft.world.0/0/dead", seconds(2)); }),
                HasSubstr("not in the store"));
  }
  const std::vector<ProcessEnd> ends = processes.Wait(seconds(60), /*except=*/{0, 1});
  for (const int rank : {0, 1}) EXPECT_EQ(ends[rank].signal, SIGKILL) << ends[rank].out;  // by Wait
  for (const int stray : {2, 3}) EXPECT_EQ(ends[stray].signal, SIGABRT) << ends[stray].err;
}

TEST(JoinWorldTest, AFileOfAnEarlierWorldIsNamed) {
  const std::string path = absl::StrCat("/tmp/weft_stale.", getpid());
  const MeetingFile file = {.rank0 = {.host = MeetingRank::Self().host, .process = 4711, .id = "x"},
                            .port = FreePort()};
  ASSERT_TRUE(file.Make(path));
  EXPECT_FALSE(file.Make(path));
  const auto join = [&](int rank, const std::string& address) {
    return MessageOf([&] {
      JoinWorld({.rank = rank, .size = 2, .address = address, .timeout = std::chrono::milliseconds(300)});
    });
  };
  EXPECT_THAT(join(0, "file://" + path),
              AllOf(HasSubstr(path + " is left from an earlier world, whose rank 0 was process 4711 on "),
                    HasSubstr("remove it, or name another")));
  EXPECT_THAT(join(1, "file://" + path), HasSubstr("does not answer: is it left from an earlier world?"));
  std::ofstream(path) << "something else";
  EXPECT_THAT(join(0, "file://" + path), HasSubstr("is not one in which ranks meet"));
  std::filesystem::remove(path);
  EXPECT_THAT(join(0, "file:///nonexistent/meet"), HasSubstr("No such file or directory"));
  EXPECT_EQ(join(0, "udp://a:1"),
            "a world's address is 'udp://a:1', expected tcp://HOST:PORT or file:///PATH");
  EXPECT_EQ(join(2, "tcp://a:1"), "rank 2 of a world of 2: expected 0 to 1");
}

ProcessEnd Spawn(const std::string& how, const std::map<std::string, std::string>& variables = {}) {
  Processes processes;
  processes.Start({kProgram, "spawn", how, "3"}, variables);
  return processes.Wait(seconds(60))[0];
}

TEST(SpawnRanksTest, RunsAFunctionOnRanksOfThisProgram) {
  const ProcessEnd end = Spawn("well");
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(end.out, HasSubstr(absl::StrCat("rank ", rank, " of 3: 6\n")));
}

// Its store is its own, in clear: what is exported for the stores of other jobs does not reach its ranks.
TEST(SpawnRanksTest, RanksKnowNothingOfOtherJobs) {
  const std::map<std::string, std::string> of_others = {
      {"WEFT_STORE_CA", "/nonexistent/ca.pem"},    {"WEFT_STORE_CERT", "/nonexistent/node.pem"},
      {"WEFT_STORE_KEY", "/nonexistent/node.key"}, {"WEFT_STORE_SERVER_NAME", "node0"},
      {"WEFT_SNAPSHOT_MEMORY", "1:3,4,5,6"},       {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  const ProcessEnd end = Spawn("well", of_others);
  EXPECT_EQ(end.exit_code, 0) << end.err;
  std::string names;
  for (const auto& [name, value] : of_others) {
    setenv(name.c_str(), value.c_str(), /*replace=*/1);
    absl::StrAppend(&names, "$", name);
  }
  EXPECT_EQ(SpawnRanks(1, {"sh", "-c", absl::StrCat("[ -z \"", names, "\" ]")}).ExitCode(), 0);
  // Unless they are meant.
  const std::string meant = "[ \"$WEFT_SNAPSHOT_MEMORY\" = 7:8 ]";
  EXPECT_EQ(SpawnRanks(1, {"sh", "-c", meant}, {.variables = {{"WEFT_SNAPSHOT_MEMORY", "7:8"}}}).ExitCode(),
            0);
  for (const auto& [name, value] : of_others) unsetenv(name.c_str());
}

TEST(SpawnRanksTest, OneThatFailsEndsAll) {
  const ProcessEnd thrown = Spawn("throw");
  EXPECT_EQ(thrown.exit_code, 1);
  EXPECT_THAT(thrown.err, HasSubstr("rank 1 exited with code 1: the disk is full\n"));
  const ProcessEnd code = Spawn("code");
  EXPECT_EQ(code.exit_code, 9) << code.err;
  EXPECT_THAT(code.err, HasSubstr("rank 1 exited with code 9\n"));
  const ProcessEnd killed = Spawn("kill");
  EXPECT_EQ(killed.exit_code, 137) << killed.err;
  EXPECT_THAT(killed.err, HasSubstr("rank 1 was killed by signal 9 (SIGKILL)\n"));
  EXPECT_EQ(Spawn("ignore").exit_code, 1);
}

// It has the rank's environment, and is no rank.
TEST(SpawnRanksTest, AProgramThatARankStartsIsRefused) {
  const ProcessEnd end = Spawn("start");
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("rank 1 of 3, which SpawnRanks has started, has started this program"));
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(end.out, HasSubstr(absl::StrCat("rank ", rank, " of 3: 6\n")));
}

TEST(SpawnRanksTest, AProgramThatARankStartsMaySpawnRanksOfItsOwn) {
  const ProcessEnd end = Spawn("unset");
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(end.out, HasSubstr(absl::StrCat("rank ", rank, " of 3: 6\n")));
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(end.out, HasSubstr(absl::StrCat("rank ", rank, " of 2: 3\n")));
}

TEST(SpawnRanksTest, CollectsTheEndsOfAnyProgram) {
  const std::string folder = absl::StrCat("/tmp/weft_ends.", getpid());
  const std::string script =
      "echo '{\"message\": {\"message\": \"no disk\"}}' > $TORCHELASTIC_ERROR_FILE;"
      "[ $RANK$COLOUR = 1red ] && exit 7; exec sleep 50";
  const SpawnResult result =
      SpawnRanks(3, {"sh", "-c", script}, {.variables = {{"COLOUR", "red"}}, .error_folder = folder});
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.ExitCode(), 7);
  ASSERT_EQ(result.ranks.size(), 3u);
  EXPECT_EQ(result.ranks[1], (SpawnedEnd{.exit_code = 7, .error = "no disk"}));
  EXPECT_EQ(result.ranks[0].signal, 15);
  EXPECT_EQ(result.ranks[1].What(), "exited with code 7: no disk");
  EXPECT_TRUE(std::filesystem::exists(folder + "/2/error.json") || result.ranks[2].signal == 15);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(SpawnRanks(2, {"true"}).ExitCode(), 0);
  EXPECT_THAT(MessageOf([] { SpawnRanks(2, {"/nonexistent"}); }),
              HasSubstr("cannot start /nonexistent: there is no such program"));
  EXPECT_EQ(InvalidArgumentMessage([] { SpawnRanks(0, {"true"}); }), "1 rank or more can be spawned, got 0");
}

// As a program of `bazel run` that goes where its user stands.
TEST(SpawnRanksTest, ARankMayGoToAnotherFolderBeforeItTellsWhyItFails) {
  const std::string folder = absl::StrCat("weft_ends.", getpid());
  const std::string script =
      "cd / && echo '{\"message\": {\"message\": \"no disk\"}}' > $TORCHELASTIC_ERROR_FILE; exit 7";
  const SpawnResult result = SpawnRanks(1, {"sh", "-c", script}, {.error_folder = folder});
  EXPECT_EQ(result.ranks[0], (SpawnedEnd{.exit_code = 7, .error = "no disk"}));
  EXPECT_TRUE(std::filesystem::exists(folder + "/0/error.json"));
  std::filesystem::remove_all(folder);
}

// Rank 0 takes a moment to end after the signal.
TEST(SpawnRanksTest, TheGraceMayBeForEver) {
  const std::string ready = absl::StrCat("/tmp/weft_ready.", getpid());
  const std::string script =
      absl::StrCat("if [ $RANK = 1 ]; then until [ -e ", ready, " ]; do sleep 0.05; done; exit 7; fi;",
                   "trap 'sleep 0.3; exit 5' TERM; : > ", ready, "; while :; do sleep 0.05; done");
  const SpawnResult result = SpawnRanks(2, {"sh", "-c", script}, {.grace = std::chrono::milliseconds::max()});
  std::filesystem::remove(ready);
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.ranks[1].exit_code, 7);
  EXPECT_EQ(result.ranks[0].exit_code, 5) << result.ranks[0].What();
}

// The system then takes the ends of processes itself.
class ChildrenIgnored {
 public:
  ChildrenIgnored() {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    WEFT_CHECK(sigaction(SIGCHLD, &ignore, &before_) == 0, "sigaction");
  }
  ~ChildrenIgnored() { sigaction(SIGCHLD, &before_, nullptr); }
  ChildrenIgnored(const ChildrenIgnored&) = delete;
  ChildrenIgnored& operator=(const ChildrenIgnored&) = delete;

 private:
  struct sigaction before_ = {};
};

TEST(SpawnRanksTest, AnEndThatAnotherHasTakenIsAnError) {
  const ChildrenIgnored ignored;
  EXPECT_EQ(MessageOf([] { SpawnRanks(1, {"/bin/true"}); }),
            "how rank 0 has ended is not known: another has taken its end (is SIGCHLD ignored?)");
}

}  // namespace
}  // namespace weft
