#ifndef WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_
#define WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_

#include <functional>
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
  // `works` end in their order; the first error is the cause of the others. `finish`, if there is any, is what
  // the rank's thread has yet to do when they have ended, such as unpacking: it runs once, at the first Settle.
  PendingMoves(RankState& state, std::vector<Work> works, std::function<void()> finish = nullptr)
      : state_(state), works_(std::move(works)), finish_(std::move(finish)) {}

  // True when nothing is under way any more. Never blocks, never throws.
  bool Test() const { return works_.empty() || works_.back().Test(); }

  // What fills them: for work of another lane that comes after it.
  const std::vector<Work>& works() const { return works_; }

  // Returns when the pieces are filled; on a GPU when its stream will go on only after that. The time it takes
  // is exposed communication.
  // Errors: those of the collectives, each time.
  void Settle();

 private:
  RankState& state_;
  std::vector<Work> works_;
  std::function<void()> finish_;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_
