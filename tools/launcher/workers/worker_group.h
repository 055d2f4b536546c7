#ifndef WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_GROUP_H_
#define WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_GROUP_H_

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/launcher/launch_options.h"
#include "tools/launcher/rendezvous/generation.h"
#include "tools/launcher/workers/console.h"
#include "tools/launcher/workers/worker_environment.h"
#include "tools/launcher/workers/worker_exit.h"
#include "tools/launcher/workers/worker_process.h"
#include "tools/launcher/workers/worker_stream.h"

namespace weft {

// How workers of every generation are started, and where their output goes.
struct WorkerGroupOptions {
  std::vector<std::string> command;
  std::vector<std::string> inherited;  // variables
  JobVariables job;
  std::string log_dir;  // of the run; empty: no logs
  std::optional<StreamChoice> tee;
  std::string host;     // of this node, for people
  std::string node_id;  // of this launcher, for the rendezvous
};

// This node's workers of one generation. Never waits: the caller polls, with AddPollFds and for SIGCHLD, and
// calls Pump and Reap.
//
// Lifetime: borrows the console. The destructor kills what still runs, children of workers included, and
//           reaps it.
// Threads:  one, which must outlive the workers: they are killed with it.
class WorkerGroup {
 public:
  // Starts the workers.
  // Errors: as StartWorkerProcess; InvalidArgument if a log cannot be made. None runs then.
  WorkerGroup(const WorkerGroupOptions& options, const Assignment& assignment, Console* console);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // The streams to read from; none while the console is behind.
  void AddPollFds(std::vector<pollfd>* fds) const;

  // Passes on what workers have written.
  void Pump();

  // The workers that ended since the last call, those that a signal ended first: of several that ended at
  // almost the same time, the one that crashed is the likelier cause.
  std::vector<WorkerExit> Reap();

  // Sends a signal to all workers that run, and what those started.
  void Signal(int signal);

  // Asks all to end by `signal` (and SIGCONT, for those that are stopped); KillIfLate kills those that have
  // not `grace` later. Of a second call only a shorter grace counts.
  void Stop(int signal, std::chrono::milliseconds grace);
  // Kills, too, what has been stopped for the job's suspicion_time and was not asked to end: nobody else may miss a worker
  // that has met nobody yet.
  void KillIfLate();
  bool stopping() const { return kill_at_.has_value(); }
  // Until KillIfLate has something to do; nullopt: nothing.
  std::optional<std::chrono::milliseconds> UntilKill() const;

  bool AllEnded() const;

  // Kills what workers have left behind, reads their last output, closes logs. After AllEnded.
  void Finish();

  // Of a worker that has ended; reads the rest of its output first.
  FailureReport Describe(const WorkerExit& exit);

 private:
  using Clock = std::chrono::steady_clock;
  struct Worker {
    WorkerProcess process;
    WorkerStream out;
    WorkerStream err;
    std::string log;  // folder
    bool ended = false;
    int stopped_by = 0;  // the signal; 0: it runs
    Clock::time_point stopped_at = {};
    int killed_stopped_by = 0;  // the signal by which it was stopped until KillIfLate killed it
  };

  void StartWorker(const WorkerGroupOptions& options, int local_rank);
  StreamRoute RouteOf(const WorkerGroupOptions& options, int local_rank, bool is_err,
                      const std::string& folder);

  void NoteStatus(Worker& worker, int status, int local_rank, std::vector<WorkerExit>* exits);

  const Assignment assignment_;
  const std::string host_;
  const std::chrono::milliseconds suspicion_time_;
  Console* const console_;
  std::vector<Worker> workers_;
  std::optional<Clock::time_point> kill_at_;
  bool killed_ = false;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_GROUP_H_
