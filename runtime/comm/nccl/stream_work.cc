#include "runtime/comm/nccl/stream_work.h"

#include <algorithm>
#include <thread>

namespace weft {

bool StreamWork::finished() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return true;
  try {
    return done_->Test();
  } catch (const Error&) {
    return false;  // the monitor ends the group with it
  }
}

void StreamWork::Wait() {
  std::vector<Tensor> tensors;  // let go of without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_.has_value()) throw Error(*error_);
  if (!ended_) {
    for (CudaStreamRef stream : streams_) {
      stalls_ != nullptr ? stalls_->Wait(stream, done_) : stream.WaitFor(*done_);
    }
    if (stalls_ == nullptr) streams_.clear();
  }
  tensors.swap(tensors_);
}

bool StreamWork::WaitFor(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::chrono::microseconds pause(1);
  constexpr std::chrono::microseconds kLongest(500);
  while (!finished()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
  Wait();
  return true;
}

std::vector<Tensor> StreamWork::End(std::optional<Error> error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return {};
  ended_ = true;
  error_ = std::move(error);
  return std::exchange(tensors_, {});
}

}  // namespace weft
