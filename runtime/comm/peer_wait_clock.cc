#include "runtime/comm/peer_wait_clock.h"

#include <algorithm>

namespace weft {

void PeerWaitClock::Begin(int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  all_entered_ns_ = 0;
  begun_ns_ = now_ns;
}

void PeerWaitClock::End() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t entered_ns = all_entered_ns_;
  if (entered_ns != 0) waited_ns_ += entered_ns - begun_ns_;
  begun_ns_ = 0;
}

int64_t PeerWaitClock::WaitedUntil(int64_t now_ns) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (begun_ns_ == 0) return waited_ns_;
  const int64_t entered_ns = all_entered_ns_;
  const int64_t until_ns = entered_ns == 0 ? now_ns : std::min(entered_ns, now_ns);
  return waited_ns_ + std::max<int64_t>(0, until_ns - begun_ns_);
}

}  // namespace weft
