#include "tests/runtime/comm/process_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// What goes through the pipe, before the message. A record is shorter than a pipe writes in one piece.
struct Record {
  int64_t time_ns;
  int32_t code;
  int32_t num_bytes;
};
constexpr size_t kMostBytes = 3000;

// One rank's process, as the parent has it.
struct Child {
  pid_t pid = 0;
  int descriptor = -1;  // of the pipe that it reports through
  bool ended = false;
};

[[noreturn]] void RunChild(int rank, int descriptor, pid_t parent,
                           const std::function<void(int, ErrorReport&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(3);  // it died before that
  ErrorReport report(descriptor);
  int exit_code = 0;
  try {
    body(rank, report);
    if (testing::Test::HasFailure()) Throw(absl::StatusCode::kInternal, "a check has failed: see its output");
  } catch (const Error& error) {
    report.Fail(error);
    exit_code = 1;
  } catch (const std::exception& error) {
    report.Fail(Error(absl::StatusCode::kUnknown, error.what()));
    exit_code = 1;
  }
  std::fflush(nullptr);
  _exit(exit_code);  // what the parent has to end is its own
}

void ReadReport(int descriptor, RankOutcome& outcome) {
  Record record = {};
  if (read(descriptor, &record, sizeof(record)) != sizeof(record)) return;
  std::string message(record.num_bytes, '\0');
  if (read(descriptor, message.data(), message.size()) < 0) return;
  outcome.error.emplace(static_cast<absl::StatusCode>(record.code), message);
  outcome.error_ns = record.time_ns;
}

// Notes it in `outcome` if the child has ended or stopped. True if it has.
bool LookAt(Child& child, RankOutcome& outcome) {
  if (child.ended) return true;
  int status = 0;
  if (waitpid(child.pid, &status, WNOHANG | WUNTRACED) != child.pid) return outcome.stopped;
  if (WIFSTOPPED(status)) {
    outcome.stopped = true;
    return true;
  }
  child.ended = true;
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return true;
}

}  // namespace

void ErrorReport::Fail(const Error& error) {
  if (has_failed_) return;
  has_failed_ = true;
  const std::string message = error.message().substr(0, kMostBytes);
  const Record record = {Clock::now().time_since_epoch().count(), static_cast<int32_t>(error.code()),
                         static_cast<int32_t>(message.size())};
  std::string bytes(reinterpret_cast<const char*>(&record), sizeof(record));
  bytes += message;
  if (write(descriptor_, bytes.data(), bytes.size()) < 0) _exit(4);
}

std::vector<RankOutcome> RunProcesses(int num_ranks, const std::function<void(int, ErrorReport&)>& body,
                                      std::chrono::seconds deadline) {
  std::fflush(nullptr);  // or every child writes what is in the buffers again
  std::vector<Child> children(num_ranks);
  const pid_t parent = getpid();
  for (int rank = 0; rank < num_ranks; ++rank) {
    int ends[2];
    WEFT_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe2");
    const pid_t pid = fork();
    WEFT_CHECK(pid >= 0, "fork");
    if (pid == 0) RunChild(rank, ends[1], parent, body);
    close(ends[1]);
    children[rank] = {pid, ends[0]};
  }
  std::vector<RankOutcome> outcomes(num_ranks);
  const auto give_up = Clock::now() + deadline;
  const auto all_done = [&] {
    bool all = true;
    for (int rank = 0; rank < num_ranks; ++rank) all &= LookAt(children[rank], outcomes[rank]);
    return all;
  };
  while (!all_done() && Clock::now() < give_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<int> late;
  for (int rank = 0; rank < num_ranks; ++rank) {
    Child& child = children[rank];
    if (!child.ended) {
      if (!outcomes[rank].stopped) late.push_back(rank);
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    ReadReport(child.descriptor, outcomes[rank]);
    close(child.descriptor);
  }
  if (!late.empty()) {
    Throw(absl::StatusCode::kDeadlineExceeded, "ranks [", absl::StrJoin(late, ", "),
          "] have not ended within ", deadline.count(), " s");
  }
  return outcomes;
}

void RethrowFirst(const std::vector<RankOutcome>& outcomes) {
  // A rank that has crashed tells nothing; what the others say of it is no more than that.
  for (const RankOutcome& outcome : outcomes) {
    if (outcome.exit_code == 0 || outcome.error.has_value()) continue;
    Throw(absl::StatusCode::kInternal, "rank ", &outcome - outcomes.data(), " ended with signal ",
          outcome.signal, ", exit code ", outcome.exit_code);
  }
  const RankOutcome* first = nullptr;
  for (const RankOutcome& outcome : outcomes) {
    if (outcome.error.has_value() && (first == nullptr || outcome.error_ns < first->error_ns))
      first = &outcome;
  }
  if (first == nullptr) return;
  Throw(first->error->code(), "rank ", first - outcomes.data(), ": ", first->error->message());
}

ShortFolder::ShortFolder() : path_("/tmp/weft.XXXXXX") {
  WEFT_CHECK(mkdtemp(path_.data()) != nullptr, "mkdtemp");
}

ShortFolder::~ShortFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace weft
