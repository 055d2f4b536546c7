#include "dtensor/redistribution/pending_moves.h"

namespace weft {

void PendingMoves::Settle() {
  if (work_.Test()) return work_.Wait();  // which throws what went wrong
  const int64_t begun_ns = FlightClock();
  work_.Wait();
  state_.world().ledger().AddExposed(/*waiting_ns=*/0, FlightClock() - begun_ns);
}

}  // namespace weft
