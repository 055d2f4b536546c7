#include "runtime/comm/local/wait_point.h"

#include "runtime/base/clamp_timeout.h"

namespace weft {

void WaitPoint::WakeAll() {
  // The lock orders this after a sleeper's look at its condition: it is either before that look or asleep.
  // Those woken need the lock, so it is let go first.
  { const std::lock_guard<std::mutex> lock(mutex_); }
  wake_.notify_all();
}

bool WaitPoint::Block(absl::FunctionRef<bool()> ready, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + ClampTimeout(timeout);
  std::unique_lock<std::mutex> lock(mutex_);
  num_sleepers_.fetch_add(1);
  const bool result = wake_.wait_until(lock, deadline, ready);
  num_sleepers_.fetch_sub(1);
  return result;
}

}  // namespace weft
