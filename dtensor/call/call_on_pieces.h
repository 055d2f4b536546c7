#ifndef WEFT_DTENSOR_CALL_CALL_ON_PIECES_H_
#define WEFT_DTENSOR_CALL_CALL_ON_PIECES_H_

#include "dtensor/call/erased_call.h"
#include "dtensor/dtensor.h"
#include "ops/op/emitter.h"

namespace weft {

// Runs the op's kernel once on the pieces that lie here, for Emitter::EmitOnPieces: each rank's as if it were
// the whole, along `dim`. Not recorded.
DTensors CallOnPieces(const ErasedCall& call, int dim, PieceOutputs kind);

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_CALL_ON_PIECES_H_
