#include "dtensor/redistribution/pending_moves.h"

#include <algorithm>

namespace weft {
namespace {

// Returns how long the lane has waited for other members meanwhile: in these works, and in what it had to do before.
// `now_ns` is when the wait begins, and then when it has ended.
int64_t Await(const LaneWorks& lane, int64_t* now_ns) {
  const PeerWaitClock* const waits = lane.worker == nullptr ? nullptr : &lane.worker->peer_waits();
  const int64_t before_ns = waits == nullptr ? 0 : waits->WaitedUntil(*now_ns);
  Work::WaitInOrder(lane.works);
  *now_ns = FlightClock();
  return waits == nullptr ? 0 : std::max<int64_t>(0, waits->WaitedUntil(*now_ns) - before_ns);
}

}  // namespace

void PendingMoves::Settle() {
  if (is_settled_) return;
  // Of operations in streams each reader's stream waits, and the communicator tells for how long the rank's stood still.
  const bool on_streams = lanes_.back()->worker == nullptr;
  if (Test()) {
    Work::WaitInOrder(works());  // for its error
    is_settled_ = !on_streams;
    return;
  }
  const int64_t begun_ns = FlightClock();
  int64_t now_ns = begun_ns;
  int64_t waiting_ns = 0;
  for (const std::shared_ptr<const LaneWorks>& lane : lanes_) waiting_ns += Await(*lane, &now_ns);
  is_settled_ = !on_streams;
  if (!on_streams) state_.world().ledger().AddExposed(waiting_ns, FlightClock() - begun_ns - waiting_ns);
}

}  // namespace weft
