#ifndef WEFT_RUNTIME_COMM_NCCL_WAIT_H_
#define WEFT_RUNTIME_COMM_NCCL_WAIT_H_

#include <chrono>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/comm/nccl/comm.h"

namespace weft {

// A wait until NCCL has done what a communicator was last asked for. The waiting thread takes turns: it asks
// Done, sleeps for NextPause, and looks at what else may end its wait.
//
// That a peer is gone does not end it at once: in the next kReasonTakes that thread may find out why.
class NcclWait {
 public:
  // Pauses grow from `first` to `longest`, each twice the one before.
  NcclWait(const NcclComm& comm, std::chrono::microseconds first, std::chrono::microseconds longest)
      : comm_(comm), pause_(first), longest_(longest) {}

  // Errors: NCCL's.
  bool Done();

  std::chrono::microseconds NextPause();

  // What NCCL says of a peer, while the reason is awaited.
  const std::optional<Error>& lost() const { return lost_; }

 private:
  const NcclComm& comm_;
  std::chrono::microseconds pause_;
  const std::chrono::microseconds longest_;
  std::optional<Error> lost_;
  std::chrono::steady_clock::time_point lost_at_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_WAIT_H_
