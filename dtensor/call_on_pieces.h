#ifndef WEFT_DTENSOR_CALL_ON_PIECES_H_
#define WEFT_DTENSOR_CALL_ON_PIECES_H_

#include "absl/types/span.h"
#include "dtensor/dispatch.h"
#include "ops/emitter.h"
#include "ops/op.h"

namespace weft {

// One call of the op's kernel on the pieces that lie here, for Emitter::EmitOnPieces: each rank's as if it
// were the whole, along `dim`. Not recorded.
DTensors CallOnPieces(const OpDef& op, absl::Span<const DTensor> operands, const void* attributes,
                      const void* scalars, int dim, PieceOutputs kind);

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_ON_PIECES_H_
