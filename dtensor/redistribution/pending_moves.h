#ifndef WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_
#define WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_

#include <utility>

#include "dtensor/context/rank_state.h"
#include "runtime/base/intrusive_ptr.h"
#include "runtime/comm/work.h"

namespace weft {

// Redistributions that were issued to a lane together and may still run: what fills the pieces of pending
// tensors, which share it. The pieces have their memory and shapes from the start.
//
// Lifetime: dropping it neither waits nor throws; the lane keeps what it works on.
// Threads:  the rank's thread.
class PendingMoves : public RefCounted<PendingMoves> {
 public:
  PendingMoves(RankState& state, Work work) : state_(state), work_(std::move(work)) {}

  // True when the pieces are filled, or never will be. Never blocks, never throws.
  bool Test() const { return work_.Test(); }

  // Returns when they are filled. The time it takes is exposed communication.
  // Errors: those of the collectives, each time.
  void Settle();

 private:
  RankState& state_;
  Work work_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_
