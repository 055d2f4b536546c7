#include "runtime/comm/link_turns.h"

#include <algorithm>

namespace weft {

LinkTurns::Turn::Turn(LinkTurns& turns, int priority, uint32_t links, std::chrono::milliseconds timeout)
    : turns_(turns), priority_(priority), links_(links), left_(timeout / 4) {}

void LinkTurns::Turn::Begin() {
  if (moves_) return;
  moves_ = true;
  const std::lock_guard<std::mutex> lock(turns_.mutex_);
  turns_.moving_.push_back(this);
}

void LinkTurns::Turn::End() {
  if (!moves_) return;
  moves_ = false;
  {
    const std::lock_guard<std::mutex> lock(turns_.mutex_);
    std::erase(turns_.moving_, this);
  }
  turns_.wake_.notify_all();
}

void LinkTurns::Turn::Hold() {
  if (!moves_ || !is_full()) return;
  filled_bytes_ = 0;
  std::unique_lock<std::mutex> lock(turns_.mutex_);
  const auto most = std::min<std::chrono::nanoseconds>(turns_.most_held_, left_);
  if (most.count() <= 0 || !turns_.MustWait(*this)) return;
  turns_.num_held_.fetch_add(1);
  const auto begun = std::chrono::steady_clock::now();
  turns_.wake_.wait_for(lock, most, [this] { return !turns_.MustWait(*this); });
  left_ -= std::chrono::steady_clock::now() - begun;
}

bool LinkTurns::MustWait(const Turn& turn) const {
  return std::any_of(moving_.begin(), moving_.end(), [&](const Turn* other) {
    return other->priority_ > turn.priority_ && (other->links_ & turn.links_) != 0;
  });
}

}  // namespace weft
