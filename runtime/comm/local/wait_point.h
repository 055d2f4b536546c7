#ifndef WEFT_RUNTIME_COMM_LOCAL_WAIT_POINT_H_
#define WEFT_RUNTIME_COMM_LOCAL_WAIT_POINT_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/functional/function_ref.h"

namespace weft {

// Where threads wait for conditions over atomics: they spin briefly (a peer on another core is tens of
// nanoseconds away), then yield (so that more ranks than cores take turns), then block.
//
// Threads: any. A condition is made of sequentially consistent loads; whoever changes what it reads stores
//          sequentially consistently and then calls Notify. So either the waiter sees the store, or Notify
//          sees the waiter: no wake-up is lost, and Notify costs one load while nobody sleeps.
class WaitPoint {
 public:
  // `spin`: false if the waiting threads may outnumber the cores, where spinning keeps the awaited from
  // running.
  explicit WaitPoint(bool spin) : num_spins_(spin ? kSpins : 0) {}

  // Returns true as soon as `ready()` holds, false if it does not within `timeout`. `ready` may be called
  // with a lock held and must not throw.
  template <class Ready>
  bool Wait(const Ready& ready, std::chrono::milliseconds timeout) {
    if (blocks_at_once_.load(std::memory_order_relaxed)) return ready() || Block(ready, timeout);
    for (int i = 0; i < num_spins_; ++i) {
      if (ready()) return true;
      Pause();
    }
    const auto give_up = std::chrono::steady_clock::now() + kYielding;
    do {
      if (ready()) return true;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < give_up);
    return Block(ready, timeout);
  }

  // From now on threads neither spin nor yield.
  void SetBlocksAtOnce() { blocks_at_once_.store(true, std::memory_order_relaxed); }

  bool has_sleepers() const { return num_sleepers_.load() != 0; }

  void Notify() {
    if (has_sleepers()) WakeAll();
  }

  void WakeAll();

 private:
  static constexpr int kSpins = 400;  // 5 to 20 us
  // Waking tens of sleepers takes a tenth of this, and a turn of as many that yield less: a group that gave
  // up sooner would sleep in every barrier. Not longer: a thread that yields to other programs comes back
  // late, one that sleeps soon.
  static constexpr std::chrono::milliseconds kYielding{1};

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  bool Block(absl::FunctionRef<bool()> ready, std::chrono::milliseconds timeout);

  const int num_spins_;
  std::atomic<bool> blocks_at_once_ = false;
  std::atomic<int> num_sleepers_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LOCAL_WAIT_POINT_H_
