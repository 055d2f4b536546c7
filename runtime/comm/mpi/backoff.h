#ifndef WEFT_RUNTIME_COMM_MPI_BACKOFF_H_
#define WEFT_RUNTIME_COMM_MPI_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <thread>

namespace weft {

// What a thread does between two looks at MPI, which cannot wake it: spins, then yields, then sleeps. A sleep
// is a sixteenth of the time waited so far, 200 us at most: so it delays no wait by more than that part of
// itself, and ranks that outnumber the cores leave them to those that work.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // `spin`: false if the waiting threads may outnumber the cores.
  explicit Backoff(bool spin) : num_spins_(spin ? kSpins : 0) {}

  // `now` - `begin`: how long this wait has lasted.
  void Pause(Clock::time_point begin, Clock::time_point now) {
    if (num_spins_ > 0) {
      --num_spins_;
    } else if (now - begin < kYielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>((now - begin) / 16, kLongestSleep));
    }
  }

 private:
  static constexpr int kSpins = 100;  // each a look at MPI: some 20 us
  static constexpr std::chrono::milliseconds kYielding{1};
  static constexpr std::chrono::microseconds kLongestSleep{200};

  int num_spins_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_BACKOFF_H_
