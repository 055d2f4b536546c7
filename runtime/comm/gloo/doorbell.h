#ifndef WEFT_RUNTIME_COMM_GLOO_DOORBELL_H_
#define WEFT_RUNTIME_COMM_GLOO_DOORBELL_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace weft {

// Where one process sleeps until another has moved something for it. Lies in memory that both have mapped.
//
// The sleeper: sets `sleeping`, reads `count`, looks whether there is anything to do, and if not sleeps on
// the count that it read. A member that moves something stores it and then calls Ring. All of it is
// sequentially consistent, so either the sleeper sees what was moved or Ring sees the sleeper.
//
// Cost: Ring is one load while nobody sleeps.
struct Doorbell {
  alignas(128) std::atomic<uint32_t> sleeping = 0;
  std::atomic<uint32_t> count = 0;

  void Ring() {
    if (sleeping.load() != 0) Wake();
  }
  void Wake();

  // Returns when the count is no longer `seen`, after `timeout`, or for no reason.
  void Sleep(uint32_t seen, std::chrono::milliseconds timeout);
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "it is shared by processes");

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_DOORBELL_H_
