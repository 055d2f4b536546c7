#ifndef WEFT_RUNTIME_COMM_WORK_STATE_H_
#define WEFT_RUNTIME_COMM_WORK_STATE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "runtime/base/error.h"

namespace weft {

// What a Work refers to: for backends.
//
// Lifetime: shared by the Works and the backend, which lets go of the operation's tensors before it is
//           finished, so that whoever has waited sees the buffers as its own again.
class WorkState {
 public:
  virtual ~WorkState() = default;

  // Work's methods of the same names (`finished` is Test).
  virtual bool finished() const = 0;
  virtual void Wait() = 0;
  virtual bool WaitFor(std::chrono::milliseconds timeout) = 0;
};

// The one of operations that a thread runs: made by a communicator when it accepts an asynchronous operation,
// and finished once, by whatever thread runs the operation.
//
// Threads: any.
class HostWorkState final : public WorkState {
 public:
  // `error`: why the operation failed; nothing if it went well.
  void Finish(std::optional<Error> error);

  bool finished() const override { return finished_.load(std::memory_order_acquire); }

  // Errors: what Finish was given, each time.
  void Wait() override;
  bool WaitFor(std::chrono::milliseconds timeout) override;

 private:
  // A copy is thrown, not one shared exception object: its reader may be on another thread.
  void ThrowIfFailed() const;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<bool> finished_ = false;
  std::optional<Error> error_;  // written before finished_
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_WORK_STATE_H_
