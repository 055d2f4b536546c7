#include "dtensor/redistribution/pending_moves.h"

namespace weft {

void PendingMoves::Settle() {
  const bool waits = !Test();
  const int64_t begun_ns = waits ? FlightClock() : 0;
  Work::WaitInOrder(works_);
  if (finish_ != nullptr) std::exchange(finish_, nullptr)();
  if (waits) state_.world().ledger().AddExposed(/*waiting_ns=*/0, FlightClock() - begun_ns);
}

}  // namespace weft
