#include "tools/launcher/processes/stop_wishes.h"

namespace weft {

bool StopWishes::Note(const ReceivedSignal& signal, Clock::time_point now) {
  int& way = signal.sender == guard_ ? from_guard_ : direct_;
  if (way > 0 && way == count_ && now - last_ < kOneWish) return false;
  ++way;
  if (way <= count_) return false;
  count_ = way;
  last_ = now;
  return true;
}

}  // namespace weft
