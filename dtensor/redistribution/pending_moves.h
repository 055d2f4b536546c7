#ifndef WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_
#define WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtensor/context/rank_state.h"
#include "runtime/base/intrusive_ptr.h"
#include "runtime/comm/work.h"
#include "runtime/comm/worker.h"

namespace weft {

// What one lane has to do for pieces, in its order.
struct LaneWorks {
  Worker* worker = nullptr;  // the lane's; null: a device's streams
  std::vector<Work> works = {};
};

// Redistributions that were issued to a lane together and may still run: what fills the pieces of pending
// tensors, which share it. The pieces have their memory and shapes from the start.
//
// Lifetime: dropping it neither waits nor throws; the lane keeps what it works on.
// Threads:  the rank's thread.
class PendingMoves : public RefCounted<PendingMoves> {
 public:
  using Lanes = std::vector<std::shared_ptr<const LaneWorks>>;

  // `works` end in their order; the first error is the cause of the others. `before` is what other lanes have to do
  // first, which the works wait for: a reader waits for it by its own name.
  PendingMoves(RankState& state, LaneWorks works, Lanes before = {})
      : state_(state), lanes_(std::move(before)) {
    lanes_.push_back(std::make_shared<const LaneWorks>(std::move(works)));
  }

  // True when nothing is under way any more, and what the rank has yet to do then (Work::Then) is done. Never blocks, never
  // throws.
  bool Test() const { return works().empty() || works().back().Test(); }

  // What fills them.
  const std::vector<Work>& works() const { return lanes_.back()->works; }

  // The same, behind what it waits for on other lanes: for work that comes after it.
  const Lanes& lanes() const { return lanes_; }

  // Returns when the pieces are filled; on a GPU when its stream will go on only after that. The time it takes
  // is exposed communication: while the lane that is waited for waits for other members, waiting; the rest is moving.
  // Errors: those of the collectives, each time.
  void Settle();

 private:
  RankState& state_;
  Lanes lanes_;              // the works are the last
  bool is_settled_ = false;  // by a worker, well: there is nothing left to wait for
};

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_PENDING_MOVES_H_
