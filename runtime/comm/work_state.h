#ifndef WEFT_RUNTIME_COMM_WORK_STATE_H_
#define WEFT_RUNTIME_COMM_WORK_STATE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "runtime/base/error.h"

namespace weft {

// What a Work refers to: for backends. Made by a communicator when it accepts an asynchronous operation, and
// finished once, by whatever thread runs the operation.
//
// Lifetime: shared by the Works and the backend. The backend lets go of the operation's tensors before it
// calls
//           Finish, so that whoever has waited sees the buffers as its own again.
// Threads:  any.
class WorkState {
 public:
  // `error`: why the operation failed; nothing if it went well.
  void Finish(std::optional<Error> error);

  bool finished() const { return finished_.load(std::memory_order_acquire); }

  // Errors: what Finish was given, each time.
  void Wait() const;
  bool WaitFor(std::chrono::milliseconds timeout) const;

 private:
  // A copy is thrown, not one shared exception object: its reader may be on another thread.
  void ThrowIfFailed() const;

  mutable std::mutex mutex_;
  mutable std::condition_variable wake_;
  std::atomic<bool> finished_ = false;
  std::optional<Error> error_;  // written before finished_
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_WORK_STATE_H_
