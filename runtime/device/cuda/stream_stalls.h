#ifndef WEFT_RUNTIME_DEVICE_CUDA_STREAM_STALLS_H_
#define WEFT_RUNTIME_DEVICE_CUDA_STREAM_STALLS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device/cuda/stream.h"

namespace weft {

// How long the rank's streams stand still for a group's operations: from where a stream comes to its wait until the
// operation has ended.
//
// Threads: any.
class StreamStalls {
 public:
  // What `stream` is given from now on waits for `done`, which has been recorded with its time.
  // Cost: one event more in the stream.
  void Wait(CudaStreamRef stream, const std::shared_ptr<CudaEvent>& done);

  // The nanoseconds of those that have ended and that nobody has taken. Events that nobody else holds any more go to
  // `free_events`; null: they go.
  // Errors: those of the device.
  int64_t TakeEnded(std::vector<std::shared_ptr<CudaEvent>>* free_events = nullptr);

  // Adds up those that have ended for the next TakeEnded, and keeps their events no longer: for when nobody may ever ask.
  // Errors: those of the device.
  void AddUpEnded();

 private:
  struct Stall {
    std::shared_ptr<CudaEvent> begun;  // the stream has come to the wait
    std::shared_ptr<CudaEvent> done;   // of the operation
  };

  void AddUp(std::vector<std::shared_ptr<CudaEvent>>* free_events);  // mutex_ held

  std::mutex mutex_;
  int64_t ended_ns_ = 0;      // that nobody has taken
  std::deque<Stall> stalls_;  // in the order of the waits
  std::vector<std::shared_ptr<CudaEvent>> free_begun_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_CUDA_STREAM_STALLS_H_
