#ifndef WEFT_RUNTIME_COMM_PEER_WAIT_CLOCK_H_
#define WEFT_RUNTIME_COMM_PEER_WAIT_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <mutex>

namespace weft {

// How long the collectives that one thread runs have waited for other members to enter them: so that whoever waits for
// that thread can tell waiting for peers from moving.
//
// Units:   nanoseconds of FlightClock.
// Threads: any.
class PeerWaitClock {
 public:
  // A collective begins. From now on it waits for peers, until it notes in `all_entered_ns` that all have entered. One
  // that never does has not waited.
  void Begin(int64_t now_ns);
  void End();

  // 0 until all members of the collective that runs have entered.
  std::atomic<int64_t>* all_entered_ns() { return &all_entered_ns_; }

  // How long collectives had waited by `now_ns`; the one that runs counts so far.
  int64_t WaitedUntil(int64_t now_ns) const;

 private:
  mutable std::mutex mutex_;  // of the rest but all_entered_ns_
  std::atomic<int64_t> all_entered_ns_ = 0;
  int64_t begun_ns_ = 0;   // 0: none runs
  int64_t waited_ns_ = 0;  // of those that have ended
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_PEER_WAIT_CLOCK_H_
