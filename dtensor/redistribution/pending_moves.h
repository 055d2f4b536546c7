#ifndef WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_
#define WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_

#include <utility>
#include <vector>

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
  // `works` end in their order; the first error is the cause of the others.
  PendingMoves(RankState& state, std::vector<Work> works) : state_(state), works_(std::move(works)) {}

  // True when the pieces are filled, or never will be. Never blocks, never throws.
  bool Test() const { return works_.empty() || works_.back().Test(); }

  // What fills them: for work of another lane that comes after it.
  const std::vector<Work>& works() const { return works_; }

  // Returns when they are filled. The time it takes is exposed communication.
  // Errors: those of the collectives, each time.
  void Settle();

 private:
  RankState& state_;
  std::vector<Work> works_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_
