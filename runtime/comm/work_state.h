#ifndef WEFT_RUNTIME_COMM_WORK_STATE_H_
#define WEFT_RUNTIME_COMM_WORK_STATE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/comm/flight_recorder.h"

namespace weft {

// What a Work refers to: for backends.
//
// Lifetime: shared by the Works and the backend, which lets go of the operation's tensors before it is
//           finished, so that whoever has waited sees the buffers as its own again.
class WorkState {
 public:
  virtual ~WorkState() = default;

  // Which operation it is, so that `recorder` knows what a thread waits for. Before the Work is given away.
  void SetOperation(FlightRecorder* recorder, uint64_t flight_id) {
    recorder_ = recorder;
    flight_id_ = flight_id;
  }
  FlightRecorder* recorder() const { return recorder_; }  // null: it is no operation of a recorded group
  uint64_t flight_id() const { return flight_id_; }

  // Work's methods of the same names (`finished` is Test).
  virtual bool finished() const = 0;
  virtual void Wait() = 0;
  virtual bool WaitFor(std::chrono::milliseconds timeout) = 0;
  virtual void WaitOnWorker() { Wait(); }

 private:
  FlightRecorder* recorder_ = nullptr;
  uint64_t flight_id_ = 0;
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
