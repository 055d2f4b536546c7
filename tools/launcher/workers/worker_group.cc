#include "tools/launcher/workers/worker_group.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/error.h"
#include "runtime/base/error_file.h"
#include "tools/launcher/processes/descendants.h"

namespace weft {
namespace {

// What a process that was killed may take to be gone; more only if the kernel holds it.
constexpr std::chrono::milliseconds kKillBound{2000};

FileDescriptor OpenLog(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  WEFT_REQUIRE(fd >= 0, "--log_dir: cannot write ", path, ": ", strerror(errno));
  return FileDescriptor(fd);
}

std::string MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  WEFT_REQUIRE(!error, "--log_dir: cannot make the folder ", path, ": ", error.message());
  return path;
}

}  // namespace

WorkerGroup::WorkerGroup(const WorkerGroupOptions& options, const Assignment& assignment, Console* console)
    : assignment_(assignment),
      host_(options.host),
      suspicion_time_(options.job.suspicion_time),
      console_(console) {
  try {
    for (int i = 0; i < options.job.workers_per_node; ++i) StartWorker(options, i);
  } catch (...) {
    Signal(SIGKILL);
    KillDescendants(kKillBound);
    throw;
  }
}

WorkerGroup::~WorkerGroup() {
  if (AllEnded()) return;
  Signal(SIGKILL);
  KillDescendants(kKillBound);
}

void WorkerGroup::StartWorker(const WorkerGroupOptions& options, int local_rank) {
  const int rank = assignment_.rank_offset + local_rank;
  std::string folder;
  if (!options.log_dir.empty()) {
    folder = MakeFolder(absl::StrCat(options.log_dir, "/", assignment_.generation, "/", rank));
  }
  StreamRoute out = RouteOf(options, local_rank, /*is_err=*/false, folder);
  StreamRoute err = RouteOf(options, local_rank, /*is_err=*/true, folder);
  std::string error_file;
  if (!folder.empty()) {
    error_file = absl::StrCat(std::filesystem::absolute(folder).string(), "/error.json");
    unlink(error_file.c_str());  // of a run of the same id before
  }
  WorkerProcess process = StartWorkerProcess(
      options.command,
      WorkerEnvironment(options.inherited, options.job, assignment_, local_rank, error_file));
  WorkerStream out_stream(std::move(process.out), std::move(out));
  WorkerStream err_stream(std::move(process.err), std::move(err));
  workers_.push_back({std::move(process), std::move(out_stream), std::move(err_stream), folder});
}

StreamRoute WorkerGroup::RouteOf(const WorkerGroupOptions& options, int local_rank, bool is_err,
                                 const std::string& folder) {
  const int rank = assignment_.rank_offset + local_rank;
  const std::string prefix = absl::StrCat("[rank ", rank, "] ");
  const bool teed =
      options.tee && (is_err ? options.tee->Stderr(local_rank) : options.tee->Stdout(local_rank));
  StreamRoute route;
  if (teed || !options.tee) {
    if (is_err) {
      route.console = &console_->err();
      route.console_prefix = prefix;
    } else if (console_->out_is_terminal()) {
      route.console = &console_->out();
      route.console_prefix = prefix;
    } else if (rank == 0) {
      route.console = &console_->out();
    }
  }
  if (!folder.empty()) {
    route.log = OpenLog(absl::StrCat(folder, is_err ? "/stderr.log" : "/stdout.log"));
    if (teed) route.log_prefix = prefix;
  }
  return route;
}

void WorkerGroup::AddPollFds(std::vector<pollfd>* fds) const {
  if (console_->full()) return;
  for (const Worker& worker : workers_) {
    for (const WorkerStream* stream : {&worker.out, &worker.err}) {
      if (stream->open()) fds->push_back({stream->fd(), POLLIN, 0});
    }
  }
}

void WorkerGroup::Pump() {
  for (Worker& worker : workers_) {
    for (WorkerStream* stream : {&worker.out, &worker.err}) {
      if (!console_->full()) stream->ReadSome();
      const std::string problem = stream->TakeLogProblem();
      if (!problem.empty()) console_->Say(absl::StrCat(worker.log, ": logging ends here: ", problem));
    }
  }
}

std::vector<WorkerExit> WorkerGroup::Reap() {
  std::vector<WorkerExit> exits;
  int status = 0;
  pid_t pid = 0;
  // Orphans of workers come here too, and are of no interest.
  while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      if (worker.process.pid != pid || worker.ended) continue;
      NoteStatus(worker, status, static_cast<int>(i), &exits);
    }
  }
  std::stable_sort(exits.begin(), exits.end(), [](const WorkerExit& a, const WorkerExit& b) {
    return std::make_pair(!WIFSIGNALED(a.status), a.rank) < std::make_pair(!WIFSIGNALED(b.status), b.rank);
  });
  return exits;
}

void WorkerGroup::NoteStatus(Worker& worker, int status, int local_rank, std::vector<WorkerExit>* exits) {
  if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
    worker.stopped_by = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
    worker.stopped_at = Clock::now();
    return;
  }
  worker.ended = true;
  WorkerExit exit = {.rank = assignment_.rank_offset + local_rank,
                     .local_rank = local_rank,
                     .pid = worker.process.pid,
                     .status = status};
  if (worker.killed_stopped_by > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
    exit.stopped_by = worker.killed_stopped_by;
    exit.stopped_for = suspicion_time_;
  }
  exits->push_back(exit);
}

void WorkerGroup::Signal(int signal) {
  // The number of a group whose leader was reaped may be somebody else's by now. What such a worker has left
  // behind, Finish kills.
  for (const Worker& worker : workers_) {
    if (!worker.ended) kill(-worker.process.pid, signal);
  }
}

void WorkerGroup::Stop(int signal, std::chrono::milliseconds grace) {
  const Clock::time_point at = Clock::now() + grace;
  if (!kill_at_) {
    Signal(signal);
    Signal(SIGCONT);
  }
  kill_at_ = kill_at_ ? std::min(*kill_at_, at) : at;
}

void WorkerGroup::KillIfLate() {
  if (!kill_at_) {
    for (Worker& worker : workers_) {
      if (worker.ended || worker.stopped_by == 0 || worker.killed_stopped_by > 0) continue;
      if (Clock::now() < worker.stopped_at + suspicion_time_) continue;
      worker.killed_stopped_by = worker.stopped_by;
      kill(worker.process.pid, SIGKILL);
    }
    return;
  }
  if (killed_ || Clock::now() < *kill_at_) return;
  killed_ = true;
  Signal(SIGKILL);
}

std::optional<std::chrono::milliseconds> WorkerGroup::UntilKill() const {
  std::optional<Clock::time_point> next = killed_ ? std::nullopt : kill_at_;
  for (const Worker& worker : workers_) {
    if (kill_at_ || worker.ended || worker.stopped_by == 0 || worker.killed_stopped_by > 0) continue;
    next = std::min(next.value_or(Clock::time_point::max()), worker.stopped_at + suspicion_time_);
  }
  if (!next) return std::nullopt;
  return std::chrono::ceil<std::chrono::milliseconds>(
      std::max<Clock::duration>(*next - Clock::now(), Clock::duration::zero()));
}

bool WorkerGroup::AllEnded() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.ended; });
}

void WorkerGroup::Finish() {
  Signal(SIGKILL);
  if (!KillDescendants(kKillBound)) console_->Say("a process that a worker started cannot be killed");
  for (Worker& worker : workers_) {
    for (WorkerStream* stream : {&worker.out, &worker.err}) {
      stream->ReadAll();
      stream->Finish();
    }
  }
}

FailureReport WorkerGroup::Describe(const WorkerExit& exit) {
  Worker& worker = workers_.at(static_cast<size_t>(exit.local_rank));
  worker.out.ReadAll();
  worker.err.ReadAll();
  return {.exit = exit,
          .host = host_,
          .time = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone()),
          .log = worker.log,
          .message = worker.log.empty() ? "" : ReadErrorFile(absl::StrCat(worker.log, "/error.json")),
          .errors = worker.err.Tail(),
          .output = worker.out.Tail()};
}

}  // namespace weft
