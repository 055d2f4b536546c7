#ifndef WEFT_DTENSOR_CALL_DECOMPOSITION_H_
#define WEFT_DTENSOR_CALL_DECOMPOSITION_H_

#include "absl/container/inlined_vector.h"
#include "dtensor/call/erased_call.h"
#include "dtensor/dtensor.h"

namespace weft {

// Which operands of a call a decomposition has made itself, by operand; empty outside decompositions. To move
// them is the op's own business, not an implicit redistribution of what its caller passed.
using OwnOperands = absl::InlinedVector<bool, 4>;

// Runs one call of a decomposition, and records nothing: Execute of dtensor/call/execute.h, which itself
// decomposes calls and so cannot be named here.
using ExecuteFunction = DTensors (*)(const ErasedCall& call, const OwnOperands* own);

// Runs a call as its op's second body (a statistics op with Partial outputs, then a finishing op), whose
// calls go through `execute` one by one and are not shown to observers: the tape holds the op itself.
//
// Cost:   the redistributions between its calls.
// Errors: as of its calls.
DTensors Decompose(const ErasedCall& call, const OwnOperands* own, ExecuteFunction execute);

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_DECOMPOSITION_H_
