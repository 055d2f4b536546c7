#include "dtensor/redistribution/pending_moves.h"

namespace weft {

void PendingMoves::Settle() { work_.Wait(); }

}  // namespace weft
