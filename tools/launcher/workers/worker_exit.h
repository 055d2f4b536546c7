#ifndef WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_EXIT_H_
#define WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_EXIT_H_

#include <sys/types.h>

#include <chrono>
#include <string>

namespace weft {

// How one worker ended. A value.
struct WorkerExit {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = -1;
  int status = 0;  // as waitpid gives it
  // Of one that was killed because it had been stopped, by which signal and for how long; 0: it was not.
  int stopped_by = 0;
  std::chrono::milliseconds stopped_for{0};

  bool failed() const { return status != 0; }

  // As a shell has it: 128 + N for signal N.
  int ExitCode() const;

  // "rank 3 exited with code 9", "rank 3 was killed by signal 11 (SIGSEGV)", "rank 3 was stopped by signal 19 (SIGSTOP) for
  // 5 s".
  std::string What() const;
};

// What is known of the worker that failed first, for whoever has to find out why.
struct FailureReport {
  WorkerExit exit;
  std::string host;
  std::string time;     // UTC
  std::string log;      // folder; empty: none
  std::string message;  // of its error file; empty: none
  std::string errors;   // the last lines of its stderr
  std::string output;   // the last lines of its stdout, for one that wrote nothing to stderr

  // Several lines, each whole, the last without an end.
  std::string ToString() const;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_EXIT_H_
