// How often the user has asked a launcher to end.

#ifndef WEFT_TOOLS_LAUNCHER_PROCESSES_STOP_WISHES_H_
#define WEFT_TOOLS_LAUNCHER_PROCESSES_STOP_WISHES_H_

#include <sys/types.h>

#include <chrono>

#include "tools/launcher/processes/signal_source.h"

namespace weft {

// Counts wishes, not signals. Service managers and batch systems signal every process of a job: the agent then has a signal of
// its own and the same one from its guard. And a wrapper passes on what the terminal has sent already.
//
//   directly, and from the guard            one wish, however late the second comes
//   twice by one way, within a second       one wish
//   twice by one way, seconds apart         two
class StopWishes {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::seconds kOneWish{1};

  explicit StopWishes(pid_t guard) : guard_(guard) {}

  // Whether this signal, which ends a program, is a new wish.
  bool Note(const ReceivedSignal& signal, Clock::time_point now);

 private:
  const pid_t guard_;
  int count_ = 0;
  Clock::time_point last_;  // wish
  // Signals by each way, those of one wish counted once.
  int from_guard_ = 0;
  int direct_ = 0;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_PROCESSES_STOP_WISHES_H_
