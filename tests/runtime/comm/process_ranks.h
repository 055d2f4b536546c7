#ifndef WEFT_TESTS_RUNTIME_COMM_PROCESS_RANKS_H_
#define WEFT_TESTS_RUNTIME_COMM_PROCESS_RANKS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace weft {

// What became of one rank's process.
struct RankOutcome {
  bool stopped = false;        // by SIGSTOP, and then killed here
  int signal = 0;              // that ended it
  int exit_code = -1;          // if it exited
  std::optional<Error> error;  // the first that the rank reported
  int64_t error_ns = 0;        // when, by the steady clock, which processes of a machine share
};

// Lets a rank tell its first error to the process that started it, at once.
class ErrorReport {
 public:
  explicit ErrorReport(int descriptor) : descriptor_(descriptor) {}
  void Fail(const Error& error);

 private:
  const int descriptor_;
  bool has_failed_ = false;
};

// Runs `body(rank, report)` in `num_ranks` processes, forked from this one, which may have no other thread.
// What a body throws, and a GoogleTest check that fails in it, is reported as its error. Returns when all
// have ended, in rank order; none outlives this process.
// Errors: DeadlineExceeded, when it has killed those that have not ended within `deadline`.
std::vector<RankOutcome> RunProcesses(int num_ranks, const std::function<void(int, ErrorReport&)>& body,
                                      std::chrono::seconds deadline = std::chrono::seconds(100));

// Throws the first error in time, as RunRanks does: its message prefixed by "rank R: ". An exit code or a
// signal that no error explains is one: Internal.
void RethrowFirst(const std::vector<RankOutcome>& outcomes);

// A folder below /tmp of its own (short enough for any path), gone with this object.
class ShortFolder {
 public:
  ShortFolder();
  ~ShortFolder();
  ShortFolder(const ShortFolder&) = delete;
  ShortFolder& operator=(const ShortFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_PROCESS_RANKS_H_
