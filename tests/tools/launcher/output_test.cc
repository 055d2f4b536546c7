// What of the workers' output goes where: weft_run as a process, over small shell scripts.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/launcher/running_program.h"
#include "tools/launcher/processes/file_descriptor.h"
#include "tools/launcher/workers/output_queue.h"

namespace weft {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

std::string LogOf(const std::string& folder, const std::string& run, int restart, int rank,
                  const std::string& stream) {
  return ContentOf(absl::StrCat(folder, "/", run, "/", restart, "/", rank, "/", stream, ".log"));
}

TEST(OutputTest, PipedStdoutIsRankZerosByteForByte) {
  // All bytes there are, lines longer than a pipe, and no end of line at the end: 699 993 bytes.
  const std::string script =
      "if [ $RANK = 0 ]; then for i in 1 2 3 4 5 6 7; do head -c 99900 /dev/zero; "
      "printf '\\001\\377\\n%050d\\n%045d' $i $i; done; else echo noise; fi";
  std::string expected;
  for (int i = 1; i <= 7; ++i) {
    expected.append(99900, '\0');
    absl::StrAppend(&expected, "\001\377\n", std::string(49, '0'), i, "\n", std::string(44, '0'), i);
  }
  RunningProgram run(WeftRun({"--nproc-per-node=3"}, script));
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_TRUE(run.out() == expected) << run.out().size() << " bytes, expected " << expected.size();
}

TEST(OutputTest, AReaderThatIsSlowGetsAllAndHoldsNothingUp) {
  // 3 MB, more than any pipe and queue hold; meanwhile rank 1's errors pass.
  RunningProgram run(
      WeftRun({"--nproc-per-node=2"}, "if [ $RANK = 0 ]; then seq 1 430000; else echo other >&2; fi"));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(run.Wait(), 0);
  const std::vector<std::string> lines = LinesOf(run.out());
  ASSERT_EQ(lines.size(), 430000u);
  for (size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(lines[i], absl::StrCat(i + 1));
  EXPECT_EQ(run.err(), "[rank 1] other\n");
}

TEST(OutputTest, AReaderThatLeavesEndsNothing) {
  RunningProgram run({"/bin/bash", "-c",
                      "tools/weft_run --nproc-per-node=2 bash -c "
                      "'for i in $(seq 1 3000); do echo line $i of many, long enough to fill pipes; done; "
                      "echo done$RANK >&2' | head -1"});
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_EQ(run.out(), "line 1 of many, long enough to fill pipes\n");
  EXPECT_TRUE(run.Await("done", 2)) << run.err();
}

TEST(OutputTest, AStreamThatIsClosedIsNoFile) {
  RunningProgram run(
      {"/bin/bash", "-c", "exec tools/weft_run --nproc-per-node=2 bash -c 'echo out; echo err >&2' <&- >&-"});
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_THAT(LinesOf(run.err()), UnorderedElementsAre("[rank 0] err", "[rank 1] err"));
}

TEST(OutputTest, AStdoutThatCannotBeWrittenIsToldOnce) {
  RunningProgram run({"/bin/bash", "-c",
                      "exec tools/weft_run --nproc-per-node=2 bash -c 'echo out; sleep 0.5; echo more' "
                      "> /dev/full"});
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_THAT(LinesOf(run.err()),
              ElementsAre("weft_run: stdout cannot be written, and what goes there is lost: "
                          "No space left on device"));
}

// A limit of this process's files stands in for a disk that is full for a while.
TEST(OutputTest, AFileThatHasRoomAgainGetsWhatComesThen) {
  const std::string path = absl::StrCat(NewFolder(), "/out");
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.open());
  OutputQueue queue(file.get());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full = {.rlim_cur = 4, .rlim_max = before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &full);
  for (const char* const line : {"one\n", "two\n"}) {
    queue.Append(line);
    queue.WriteSome();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(queue.empty());  // nobody waits for room
  queue.Append("three\n");
  queue.WriteSome();
  EXPECT_EQ(ContentOf(path), "one\nthree\n");
}

TEST(OutputTest, LinesOfStderrStayWhole) {
  // Each rank writes each line in three pieces.
  RunningProgram run(
      WeftRun({"--nproc-per-node=4"},
              "for i in $(seq 1 200); do printf 'rank '; printf $RANK; echo \" line $i\"; done >&2"));
  EXPECT_EQ(run.Wait(), 0);
  std::vector<int> next(4, 1);
  for (const std::string& line : LinesOf(run.err())) {
    const int rank = NumberAfter(line, "[rank");
    ASSERT_TRUE(rank >= 0 && rank < 4) << line;
    ASSERT_EQ(line, absl::StrCat("[rank ", rank, "] rank ", rank, " line ", next[rank]));
    ++next[rank];
  }
  EXPECT_THAT(next, ElementsAre(201, 201, 201, 201));
}

TEST(OutputTest, LinesStayWholeWhereBothStreamsAreOnePipe) {
  RunningProgram run(WeftRun({"--nproc-per-node=2"},
                             "for i in $(seq 1 200); do printf 'out '; echo $i; echo err $i >&2; done"),
                     RunningProgram::Streams::kOnePipe);
  EXPECT_EQ(run.Wait(), 0);
  int out = 0;
  int err = 0;
  for (const std::string& line : LinesOf(run.out())) {
    if (absl::StartsWith(line, "[rank ")) {
      ASSERT_THAT(line, testing::MatchesRegex("\\[rank [01]\\] err [0-9]+"));
      ++err;
    } else {
      ASSERT_EQ(line, absl::StrCat("out ", ++out));
    }
  }
  EXPECT_EQ(out, 200);
  EXPECT_EQ(err, 400);
}

TEST(OutputTest, ATerminalShowsAllRanksWithPrefixes) {
  RunningProgram run(WeftRun({"--nproc-per-node=3"}, "printf \"I am $RANK\""),
                     RunningProgram::Streams::kTerminal);
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_THAT(LinesOf(run.out()),
              UnorderedElementsAre("[rank 0] I am 0\r", "[rank 1] I am 1\r", "[rank 2] I am 2\r"));
}

TEST(OutputTest, LogsHoldWhatWorkersWrote) {
  const std::string folder = NewFolder();
  RunningProgram run(WeftRun({"--nproc-per-node=2", "--log-dir", folder, "--rdzv-id=r1", "--max-restarts=1"},
                             "printf \"out $RANK\\n\\nend\"; echo err $RANK >&2; exit $((1 - "
                             "TORCHELASTIC_RESTART_COUNT))"));
  EXPECT_EQ(run.Wait(), 0);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(LogOf(folder, "r1", 1, rank, "stdout"), absl::StrCat("out ", rank, "\n\nend"));
    EXPECT_EQ(LogOf(folder, "r1", 1, rank, "stderr"), absl::StrCat("err ", rank, "\n"));
  }
  EXPECT_THAT(run.out(), HasSubstr("out 0\n\nend"));
  EXPECT_THAT(run.err(), HasSubstr("[rank 1] err 1\n"));
}

TEST(OutputTest, TeeChoosesAndPrefixes) {
  const std::string folder = NewFolder();
  RunningProgram run(WeftRun({"--nproc_per_node", "3", "--log_dir", folder, "--rdzv_id=r", "--tee=0:3,1:2"},
                             "echo out $RANK; echo err $RANK >&2"));
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_EQ(run.out(), "out 0\n");  // a pipe: rank 0 alone, and no prefix
  EXPECT_THAT(LinesOf(run.err()), UnorderedElementsAre("[rank 0] err 0", "[rank 1] err 1"));
  EXPECT_EQ(LogOf(folder, "r", 0, 0, "stdout"), "[rank 0] out 0\n");
  EXPECT_EQ(LogOf(folder, "r", 0, 0, "stderr"), "[rank 0] err 0\n");
  EXPECT_EQ(LogOf(folder, "r", 0, 1, "stdout"), "out 1\n");
  EXPECT_EQ(LogOf(folder, "r", 0, 1, "stderr"), "[rank 1] err 1\n");
  EXPECT_EQ(LogOf(folder, "r", 0, 2, "stderr"), "err 2\n");
}

TEST(OutputTest, TeeWithoutAFolderMakesOne) {
  RunningProgram run(WeftRun({"--nproc-per-node=2", "--rdzv-id=r", "--tee=1:1"}, "echo out $RANK"));
  EXPECT_EQ(run.Wait(), 0);
  EXPECT_EQ(run.out(), "");
  const std::string said = "weft_run: logs are in ";
  ASSERT_TRUE(absl::StartsWith(run.err(), said)) << run.err();
  const std::string folder = LinesOf(run.err()).front().substr(said.size());
  EXPECT_EQ(LogOf(folder, "r", 0, 0, "stdout"), "out 0\n");
  EXPECT_EQ(LogOf(folder, "r", 0, 1, "stdout"), "[rank 1] out 1\n");
  std::filesystem::remove_all(folder);
}

TEST(OutputTest, AFailureWithoutErrorsShowsTheEndOfStdoutAndTheLogs) {
  const std::string folder = NewFolder();
  RunningProgram run(
      WeftRun({"--nproc-per-node=2", "--log-dir", folder, "--rdzv-id=x"},
              "[ $RANK = 1 ] || exec sleep 60; for i in $(seq 1 500); do echo line $i; done; exit 2"));
  EXPECT_EQ(run.Wait(), 2);
  EXPECT_THAT(run.err(), HasSubstr(absl::StrCat("\n  logs   ", folder, "/x/0/1\n")));
  EXPECT_THAT(run.err(), HasSubstr("the end of its stdout (its stderr is empty):\n    line 301\n"));
  EXPECT_TRUE(absl::EndsWith(run.err(), "\n    line 500\n")) << run.err();
  EXPECT_EQ(run.out(), "");
}

// A worker says why it fails in a file of its own, as torchrun's do; what an earlier run left there is not taken for it.
TEST(OutputTest, AWorkersErrorFileIsInTheReport) {
  const std::string folder = NewFolder();
  const std::vector<std::string> flags = {"--nproc-per-node=2", "--log-dir", folder, "--rdzv-id=x"};
  RunningProgram run(
      WeftRun(flags,
              "[ $RANK = 1 ] || exec sleep 60; "
              "echo '{\"message\": {\"message\": \"the disk is full\"}}' > $TORCHELASTIC_ERROR_FILE; "
              "exit 2"));
  EXPECT_EQ(run.Wait(), 2);
  EXPECT_THAT(run.err(),
              HasSubstr(absl::StrCat("\n  logs   ", folder, "/x/0/1\n  error  the disk is full\n")));
  RunningProgram again(WeftRun(flags, "[ $RANK = 1 ] || exec sleep 60; exit 3"));
  EXPECT_EQ(again.Wait(), 3);
  EXPECT_THAT(again.err(), Not(HasSubstr("the disk is full")));
}

TEST(OutputTest, LogsThatCannotBeMadeAreAClearError) {
  RunningProgram run(WeftRun({"--log-dir=/proc/none"}, "echo never"));
  EXPECT_EQ(run.Wait(), 1);
  EXPECT_EQ(LinesOf(run.err()).size(), 1u);
  EXPECT_THAT(run.err(), HasSubstr("--log_dir: cannot make the folder /proc/none/"));
  EXPECT_EQ(run.out(), "");
}

TEST(OutputTest, WorkersFindTorchrunsVariables) {
  // Of a launcher above this one nothing but the ordinary variables may get through.
  RunningProgram run({"/usr/bin/env", "RANK=77", "TORCHELASTIC_USE_AGENT_STORE=True", "PLAIN=a b",
                      "tools/weft_run", "--nproc-per-node=2", "--rdzv-id=job", "--max-restarts=4", "bash",
                      "-c", "[ $RANK = 1 ] && env >&2 || true"});
  EXPECT_EQ(run.Wait(), 0);
  const std::vector<std::string> lines = LinesOf(run.err());
  for (const char* expected :
       {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1",
        "ROLE_RANK=1", "ROLE_WORLD_SIZE=2", "ROLE_NAME=default", "MASTER_ADDR=127.0.0.1",
        "TORCHELASTIC_RESTART_COUNT=0", "TORCHELASTIC_MAX_RESTARTS=4", "TORCHELASTIC_RUN_ID=job",
        "OMP_NUM_THREADS=1", "WEFT_AGENT_STORE=1", "PLAIN=a b"}) {
    EXPECT_THAT(lines, Contains(absl::StrCat("[rank 1] ", expected)));
  }
  EXPECT_THAT(run.err(), Not(HasSubstr("TORCHELASTIC_USE_AGENT_STORE")));
  EXPECT_THAT(run.err(), testing::ContainsRegex("MASTER_PORT=[1-9][0-9]+\n"));
  EXPECT_THAT(run.err(), testing::ContainsRegex("WEFT_STORE_TOKEN=[0-9a-f]+\n"));
}

TEST(OutputTest, ThreadsOfOpenMpAreLeftAsTheUserSaid) {
  RunningProgram several({"/usr/bin/env", "OMP_NUM_THREADS=3", "tools/weft_run", "--nproc-per-node=2", "bash",
                          "-c", "echo threads $OMP_NUM_THREADS"});
  EXPECT_EQ(several.Wait(), 0);
  EXPECT_EQ(several.out(), "threads 3\n");
  RunningProgram one({"/usr/bin/env", "-u", "OMP_NUM_THREADS", "tools/weft_run", "bash", "-c",
                      "echo threads $OMP_NUM_THREADS"});
  EXPECT_EQ(one.Wait(), 0);
  EXPECT_EQ(one.out(), "threads\n");
}

}  // namespace
}  // namespace weft
