#include "runtime/device/cuda/stream_stalls.h"

#include <algorithm>
#include <utility>

namespace weft {

void StreamStalls::Wait(CudaStreamRef stream, const std::shared_ptr<CudaEvent>& done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<CudaEvent> begun;
  if (free_begun_.empty()) {
    begun = std::make_shared<CudaEvent>(CudaEvent::Timing::kOn);
  } else {
    begun = std::move(free_begun_.back());
    free_begun_.pop_back();
  }
  begun->Record(stream);
  stream.WaitFor(*done);
  stalls_.push_back({std::move(begun), done});
}

// An operation that had ended when the stream came to the wait has an end before that: no time was lost.
void StreamStalls::AddUp(std::vector<std::shared_ptr<CudaEvent>>* free_events) {
  while (!stalls_.empty() && stalls_.front().begun->Test() && stalls_.front().done->Test()) {
    Stall& stall = stalls_.front();
    const double milliseconds = CudaEvent::MillisecondsBetween(*stall.begun, *stall.done);
    ended_ns_ += static_cast<int64_t>(std::max(0.0, milliseconds) * 1e6);
    free_begun_.push_back(std::move(stall.begun));
    if (free_events != nullptr && stall.done.use_count() == 1) free_events->push_back(std::move(stall.done));
    stalls_.pop_front();
  }
}

int64_t StreamStalls::TakeEnded(std::vector<std::shared_ptr<CudaEvent>>* free_events) {
  const std::lock_guard<std::mutex> lock(mutex_);
  AddUp(free_events);
  return std::exchange(ended_ns_, 0);
}

void StreamStalls::AddUpEnded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  AddUp(nullptr);
}

}  // namespace weft
