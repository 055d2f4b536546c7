// weft_run as a process, over workers that are small shell scripts: exit codes, failures, restarts, signals,
// and that nothing is left running.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/launcher/running_program.h"
#include "tools/launcher/processes/descendants.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

// From a worker's failure to the end of the launcher: seconds, and more on a busy machine.
constexpr seconds kStopBound{30};

std::vector<std::string> Workers(int count, const std::string& script,
                                 const std::vector<std::string>& flags = {}) {
  std::vector<std::string> all = {absl::StrCat("--nproc-per-node=", count)};
  all.insert(all.end(), flags.begin(), flags.end());
  return WeftRun(all, script);
}

// `command`, by a shell that has set its limits by `ulimit` so.
std::vector<std::string> WithLimit(const std::string& limit, const std::vector<std::string>& command) {
  std::vector<std::string> limited = {"/bin/bash", "-c", absl::StrCat("ulimit ", limit, "; exec \"$@\""),
                                      "bash"};
  limited.insert(limited.end(), command.begin(), command.end());
  return limited;
}

std::string InFolder(const std::string& folder, const std::string& script) {
  return absl::StrCat("cd ", folder, "; ", script);
}

TEST(SupervisionTest, AllGoWell) {
  RunningProgram run(Workers(4, "[ $RANK = 0 ] && exit 0; sleep 0.$RANK"));
  EXPECT_EQ(run.Wait(), 0);  // rank 0's early end is no failure
  EXPECT_EQ(run.err(), "");
  EXPECT_EQ(run.out(), "");
}

TEST(SupervisionTest, TheFirstFailureIsTheExitCodeAndShownLast) {
  RunningProgram run(
      Workers(3, InFolder(NewFolder(),
                          "if [ $RANK = 1 ]; then until [ -e 0 ] && [ -e 2 ]; do sleep 0.05; done;"
                          "echo 'first line' >&2; printf 'last line' >&2; exit 9; fi;"
                          "trap 'echo stopped >&2; exit 4' TERM; touch $RANK; sleep 60 & wait")));
  ASSERT_EQ(run.Wait(), 9);
  const std::vector<std::string> lines = LinesOf(run.err());
  ASSERT_GE(lines.size(), 7u) << run.err();
  const size_t head = lines.size() - 6 - 1;
  EXPECT_THAT(lines[head], HasSubstr("weft_run: the job failed: rank 1 exited with code 9 on "));
  EXPECT_THAT(lines[head + 1], HasSubstr("rank   1, local rank 1 on "));
  EXPECT_THAT(lines[head + 2], HasSubstr("pid    "));
  EXPECT_THAT(lines[head + 3], HasSubstr("time   2"));
  EXPECT_EQ(lines[head + 4], "  the end of its stderr:");
  EXPECT_EQ(lines[head + 5], "    first line");
  EXPECT_EQ(lines[head + 6], "    last line");
  // The others were told to stop, and what they said stands before.
  EXPECT_THAT(run.err(), HasSubstr("[rank 0] stopped\n"));
  EXPECT_THAT(run.err(), HasSubstr("[rank 2] stopped\n"));
}

TEST(SupervisionTest, ASignalIsNamed) {
  RunningProgram run(Workers(2, "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 60"));
  EXPECT_EQ(run.Wait(), 128 + SIGSEGV);
  EXPECT_THAT(run.err(), HasSubstr("rank 1 was killed by signal 11 (SIGSEGV)"));
  EXPECT_THAT(run.err(), HasSubstr("it wrote nothing"));
}

TEST(SupervisionTest, WorkersThatIgnoreSigtermOrAreStoppedAreKilledInTime) {
  RunningProgram run(Workers(3,
                             "echo pid$RANK $$ >&2; case $RANK in"
                             " 0) trap '' TERM; echo ready >&2; while true; do sleep 1; done;;"
                             " 1) echo ready >&2; kill -STOP $$;;"
                             " 2) exec sleep 60;; esac"));
  ASSERT_TRUE(run.Await("ready", 2));
  ASSERT_TRUE(run.Await("pid2"));
  std::this_thread::sleep_for(milliseconds(200));
  const Clock::time_point failure = Clock::now();
  kill(NumberAfter(run.err(), "pid2"), SIGKILL);
  EXPECT_EQ(run.Wait(), 128 + SIGKILL);
  EXPECT_LT(Clock::now() - failure, kStopBound);
  EXPECT_TRUE(IsGone(NumberAfter(run.err(), "pid0"), milliseconds(0)));
  EXPECT_TRUE(IsGone(NumberAfter(run.err(), "pid1"), milliseconds(0)));
}

// Also one that nobody else misses, since it has met nobody yet.
TEST(SupervisionTest, AWorkerThatStaysStoppedHasFailed) {
  RunningProgram run(
      Workers(2, "case $RANK in 0) exec sleep 60;; 1) kill -STOP $$;; esac", {"--suspicion_time=500ms"}));
  EXPECT_EQ(run.Wait(), 128 + SIGKILL);
  EXPECT_THAT(run.err(), HasSubstr("the job failed: rank 1 was stopped by signal 19 (SIGSTOP) for 0.5 s"));
}

TEST(SupervisionTest, AWorkerThatIsContinuedInTimeGoesOn) {
  // Many stops, each shorter than the time, all together longer.
  RunningProgram run(
      Workers(2,
              InFolder(NewFolder(),
                       "if [ $RANK = 1 ]; then echo $$ > pid1.new; mv pid1.new pid1; until [ -e go ]; do "
                       "sleep 0.02; done; exit 0; fi;"
                       "until [ -e pid1 ]; do sleep 0.02; done;"
                       "for i in 1 2 3 4; do kill -STOP $(cat pid1); sleep 0.6; kill -CONT $(cat pid1);"
                       "sleep 0.05; done; touch go"),
              {"--suspicion_time=2s"}));
  EXPECT_EQ(run.Wait(), 0) << run.err();
}

// A worker that starts two processes: one in its own group, one that left group and session; prints their
// pids.
constexpr char kStartsOthers[] =
    "sleep 300 & echo near$RANK $! >&2;"
    "setsid bash -c 'trap \"\" TERM HUP INT; echo far$RANK $$ >&2; while true; do sleep 1; done' &"
    "until [ -e go ]; do sleep 0.05; done; ";

void ExpectAllGone(const std::string& text, milliseconds bound) {
  for (const char* name : {"near0", "near1", "far0", "far1"}) {
    const int pid = NumberAfter(text, name);
    ASSERT_GT(pid, 0) << name << " in " << text;
    EXPECT_TRUE(IsGone(pid, bound)) << name;
  }
}

void Touch(const std::string& path) { fclose(fopen(path.c_str(), "w")); }

TEST(SupervisionTest, NoOrphanIsLeftBySuccess) {
  const std::string folder = NewFolder();
  RunningProgram run(Workers(2, InFolder(folder, absl::StrCat(kStartsOthers, "exit 0"))));
  ASSERT_TRUE(run.Await("far", 2));
  Touch(folder + "/go");
  EXPECT_EQ(run.Wait(), 0);
  ExpectAllGone(run.err(), milliseconds(0));
}

TEST(SupervisionTest, NoOrphanIsLeftByFailure) {
  const std::string folder = NewFolder();
  RunningProgram run(Workers(2, InFolder(folder, absl::StrCat(kStartsOthers, "exit 7"))));
  ASSERT_TRUE(run.Await("far", 2));
  Touch(folder + "/go");
  EXPECT_EQ(run.Wait(), 7);
  ExpectAllGone(run.err(), milliseconds(0));
}

TEST(SupervisionTest, NoOrphanIsLeftByAnAgentThatIsKilled) {
  RunningProgram run(Workers(2, InFolder(NewFolder(), kStartsOthers)));
  ASSERT_TRUE(run.Await("far", 2));
  const std::vector<pid_t> below = DescendantsOf(run.pid());
  ASSERT_FALSE(below.empty());
  kill(below.front(), SIGKILL);  // the guard's one child
  EXPECT_EQ(run.Wait(), 128 + SIGKILL);
  EXPECT_THAT(run.err(), HasSubstr("its agent was killed by signal 9"));
  ExpectAllGone(run.err(), milliseconds(0));
  for (pid_t pid : below) EXPECT_TRUE(IsGone(pid, milliseconds(0))) << pid;
}

TEST(SupervisionTest, NoOrphanIsLeftByAGuardThatIsKilled) {
  RunningProgram run(Workers(2, InFolder(NewFolder(), kStartsOthers)));
  ASSERT_TRUE(run.Await("far", 2));
  const std::vector<pid_t> below = DescendantsOf(run.pid());
  kill(run.pid(), SIGKILL);
  EXPECT_EQ(run.Wait(), 128 + SIGKILL);
  for (pid_t pid : below) EXPECT_TRUE(IsGone(pid)) << pid;
  ExpectAllGone(run.err(), RunningProgram::kBound);
}

TEST(SupervisionTest, SignalsAreForwarded) {
  RunningProgram run(
      Workers(2,
              "trap 'echo got usr1' USR1; trap 'echo got int; exit 0' INT; trap 'echo no' TERM;"
              "echo ready >&2; while true; do sleep 0.05; done",
              {"--tee=3", absl::StrCat("--log-dir=", NewFolder())}));
  ASSERT_TRUE(run.Await("ready", 2));
  kill(run.pid(), SIGUSR1);
  ASSERT_TRUE(run.Await("got usr1"));
  kill(run.pid(), SIGINT);
  EXPECT_EQ(run.Wait(), 128 + SIGINT);
  EXPECT_EQ(run.out(), "got usr1\ngot int\n");
  EXPECT_THAT(run.err(), Not(HasSubstr("failed")));  // the user's wish is no failure
}

TEST(SupervisionTest, ControlCAtTheTerminalReachesWorkersOnce) {
  RunningProgram run(
      Workers(2,
              "trap 'echo got int; got=1' INT; echo ready; until [ $got ]; do sleep 0.05; done; "
              "for i in $(seq 10); do sleep 0.05; done; exit 0"),
      RunningProgram::Streams::kTerminal);
  ASSERT_TRUE(run.Await("ready", 2));
  run.Type("\x03");
  EXPECT_EQ(run.Wait(), 128 + SIGINT);
  EXPECT_THAT(run.out(), HasSubstr("[rank 0] got int\r\n"));
  EXPECT_THAT(run.out(), HasSubstr("[rank 1] got int\r\n"));
  EXPECT_FALSE(run.Await("got int", 3, milliseconds(0)));
}

// As a service manager ends a cgroup, or a batch system a job.
TEST(SupervisionTest, ASignalToEveryProcessIsOne) {
  const std::string folder = NewFolder();
  RunningProgram run(Workers(
      2, InFolder(folder,
                  "trap 'echo told >&2; until [ -e go ]; do sleep 0.05; done; echo saved >&2; exit 0' "
                  "TERM; echo ready >&2; while true; do sleep 0.05; done")));
  ASSERT_TRUE(run.Await("ready", 2));
  const pid_t agent = DescendantsOf(run.pid()).front();
  kill(agent, SIGTERM);
  kill(run.pid(), SIGTERM);
  ASSERT_TRUE(run.Await("told", 2));
  EXPECT_EQ(run.Wait(seconds(2)), -1);
  Touch(folder + "/go");
  EXPECT_EQ(run.Wait(), 128 + SIGTERM);
  EXPECT_TRUE(run.Await("saved", 2, milliseconds(0))) << run.err();
}

TEST(SupervisionTest, TheStopGraceIsAnOption) {
  const std::vector<std::string> command =
      Workers(2, "trap '' TERM; echo ready >&2; while true; do sleep 0.05; done", {"--stop-grace=100ms"});
  RunningProgram run(command);
  ASSERT_TRUE(run.Await("ready", 2));
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Wait(seconds(25)), 128 + SIGTERM);  // by default it would be 30 s
}

TEST(SupervisionTest, ASecondSignalDoesNotWait) {
  RunningProgram run(Workers(2, "trap 'echo told >&2' TERM; echo ready >&2; while true; do sleep 0.05; done",
                             {"--stop-grace=10m"}));
  ASSERT_TRUE(run.Await("ready", 2));
  kill(run.pid(), SIGTERM);
  // What comes within a second of when the agent has heard it is the same wish.
  ASSERT_TRUE(run.Await("told", 2)) << run.err();
  EXPECT_EQ(run.Wait(milliseconds(1500)), -1);  // the workers may take their time
  kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.Wait(), 128 + SIGTERM);
}

TEST(SupervisionTest, RestartsWithANewGeneration) {
  RunningProgram run(
      Workers(2,
              "echo \"life $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS\" >&2;"
              "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 1 ] && exit 5; sleep 60",
              {"--max-restarts=3"}));
  EXPECT_EQ(run.Wait(), 0) << run.err();
  for (int life = 0; life < 3; ++life) {
    EXPECT_THAT(run.err(), HasSubstr(absl::StrCat("[rank 1] life ", life, " of 3\n")));
  }
  EXPECT_THAT(run.err(), HasSubstr("all workers start again (restart 2 of 3)"));
  EXPECT_THAT(run.err(), Not(HasSubstr("restart 3 of 3")));
}

TEST(SupervisionTest, RestartsEnd) {
  RunningProgram run(Workers(2, "[ $RANK = 0 ] && exit 6; sleep 60", {"--max_restarts", "1"}));
  EXPECT_EQ(run.Wait(), 6);
  EXPECT_THAT(run.err(), HasSubstr("the job failed (after 1 of 1 restarts): rank 0 exited with code 6"));
}

// A shell's soft limit is low, so that programs that ask for more have to raise it.
TEST(SupervisionTest, TheSoftLimitOfOpenFilesIsRaised) {
  RunningProgram run(WithLimit("-Sn 48", Workers(32, "[ $(ulimit -Sn) -gt 48 ]")));
  EXPECT_EQ(run.Wait(), 0) << run.err();
  RunningProgram store(WithLimit(
      "-Sn 48", {"tools/weft_run", "store", "--host=127.0.0.1", "--port=0", "--dir=" + NewFolder()}));
  ASSERT_TRUE(store.Await("127.0.0.1:", 2)) << store.err();
  rlimit limit = {};
  ASSERT_EQ(prlimit(store.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  EXPECT_GT(limit.rlim_cur, rlim_t{48});
}

// Memory for 32 workers' snapshots is 128 files, beside which their pipes would have no room.
TEST(SupervisionTest, WorkersComeBeforeMemoryForSnapshots) {
  RunningProgram run(WithLimit("-n 180", Workers(32, "[ -z \"$WEFT_SNAPSHOT_MEMORY\" ]")));
  EXPECT_EQ(run.Wait(), 0) << run.err();
}

TEST(SupervisionTest, AProgramThatCannotStartIsOneLine) {
  RunningProgram missing(
      {"tools/weft_run", "--nproc-per-node=2", "--max-restarts=5", "/no/such/program", "x"});
  EXPECT_EQ(missing.Wait(), 1);
  ASSERT_EQ(LinesOf(missing.err()).size(), 1u) << missing.err();
  EXPECT_THAT(missing.err(), HasSubstr("cannot start /no/such/program: there is no such program"));
  RunningProgram no_program({"tools/weft_run", "/etc/passwd"});
  EXPECT_EQ(no_program.Wait(), 1);
  ASSERT_EQ(LinesOf(no_program.err()).size(), 1u) << no_program.err();
  EXPECT_THAT(no_program.err(), HasSubstr("cannot start /etc/passwd: it may not be executed"));
  RunningProgram bad_flag({"tools/weft_run", "--nproc-per-nod=2", "true"});
  EXPECT_EQ(bad_flag.Wait(), 1);
  EXPECT_EQ(bad_flag.err(), "error: unknown flag --nproc-per-nod: did you mean --nproc_per_node?\n");
}

}  // namespace
}  // namespace weft
