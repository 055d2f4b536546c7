#ifndef WEFT_RUNTIME_COMM_MPI_WAIT_H_
#define WEFT_RUNTIME_COMM_MPI_WAIT_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "runtime/comm/mpi/backoff.h"
#include "runtime/comm/mpi/group.h"

namespace weft {

// How long an operation whose group has failed goes on: what all have entered may still end well.
inline constexpr std::chrono::milliseconds kMpiEntering{100};  // for what is on its way from the peers
inline constexpr std::chrono::milliseconds kMpiMoving{1000};   // for data that all have begun to move

// What is waited for. Called rarely: when somebody has gone away, the group has failed or the time is over.
struct MpiAwaited {
  absl::FunctionRef<std::string()> what;          // names the operation
  absl::FunctionRef<std::vector<int>()> missing;  // the members awaited
  bool moving = false;  // all have entered, data are awaited: nobody is missed for having gone away
  std::chrono::milliseconds patience = kMpiEntering;  // as above
};

// One wait of a member for its peers: `while (!ready) wait.Turn(awaited);`.
//
// Threads: the one that waits.
class MpiWait {
 public:
  MpiWait(MpiGroup& group, std::chrono::milliseconds timeout);

  // Handles what has arrived, then pauses. What is ready then is seen by the caller before any error.
  // Errors: DeadlineExceeded after the timeout, Aborted if a missing member has gone away: each ends the
  //         group. What has ended it, after `patience`; at once if that is not for data and a missing member
  //         has gone away.
  void Turn(const MpiAwaited& awaited);

 private:
  using Clock = Backoff::Clock;

  void ThrowOrGoOn(const MpiAwaited& awaited, Clock::time_point now);
  std::string SilenceOf(const MpiAwaited& awaited);

  MpiGroup& group_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point begin_;
  Backoff backoff_;
  std::optional<Clock::time_point> end_;  // once the group has failed
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_WAIT_H_
