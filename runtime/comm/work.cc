#include "runtime/comm/work.h"

#include "runtime/comm/work_state.h"

namespace weft {

void HostWorkState::Finish(std::optional<Error> error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  error_ = std::move(error);
  finished_.store(true, std::memory_order_release);
  wake_.notify_all();
}

void HostWorkState::ThrowIfFailed() const {
  if (error_.has_value()) throw Error(*error_);
}

void HostWorkState::Wait() {
  if (!finished()) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return finished(); });
  }
  ThrowIfFailed();
}

bool HostWorkState::WaitFor(std::chrono::milliseconds timeout) {
  if (!finished()) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!wake_.wait_for(lock, timeout, [this] { return finished(); })) return false;
  }
  ThrowIfFailed();
  return true;
}

bool Work::Test() const { return state_ == nullptr || state_->finished(); }

void Work::Wait() const {
  if (state_ != nullptr) state_->Wait();
}

bool Work::WaitFor(std::chrono::milliseconds timeout) const {
  return state_ == nullptr || state_->WaitFor(timeout);
}

}  // namespace weft
