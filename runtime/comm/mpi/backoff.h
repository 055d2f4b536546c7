#ifndef WEFT_RUNTIME_COMM_MPI_BACKOFF_H_
#define WEFT_RUNTIME_COMM_MPI_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace weft {

// What a thread does between two looks at MPI, which cannot wake it: spins, then yields, then sleeps. A sleep
// is a sixteenth of the time waited so far, 200 us at most: so it delays no wait by more than that part of
// itself, and ranks that outnumber the cores leave them to those that work.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // What it begins with: threads that may outnumber the cores do not spin, those beside one that computes do not yield, either.
  enum class First : uint8_t { kSpins, kYields, kSleeps };

  explicit Backoff(First first)
      : num_spins_(first == First::kSpins ? kSpins : 0), yields_(first != First::kSleeps) {}

  // `now` - `begin`: how long this wait has lasted.
  void Pause(Clock::time_point begin, Clock::time_point now) {
    if (num_spins_ > 0) {
      --num_spins_;
    } else if (yields_ && now - begin < kYielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(
          std::clamp<Clock::duration>((now - begin) / 16, kShortestSleep, kLongestSleep));
    }
  }

 private:
  static constexpr int kSpins = 100;  // each a look at MPI: some 20 us
  static constexpr std::chrono::milliseconds kYielding{1};
  static constexpr std::chrono::microseconds kShortestSleep{10};  // the system adds some 50
  static constexpr std::chrono::microseconds kLongestSleep{200};

  int num_spins_;
  const bool yields_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_BACKOFF_H_
