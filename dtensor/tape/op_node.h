#ifndef WEFT_DTENSOR_TAPE_OP_NODE_H_
#define WEFT_DTENSOR_TAPE_OP_NODE_H_

#include "absl/types/span.h"
#include "dtensor/call/erased_call.h"
#include "dtensor/call/execute.h"
#include "dtensor/context/resolved_call.h"
#include "dtensor/dtensor.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Whether `call` is to be recorded: gradients are enabled and some operand wants one. Asked before it runs.
// Errors: FailedPrecondition if so, and the op has a floating output and no backward.
bool WantsRecording(const ErasedCall& call, absl::Span<const TensorType> outputs);

// Runs a call and records it, if some operand wants a gradient.
// Errors: the call's, and WantsRecording's.
DTensors RunRecorded(Execution& execution);

// Records `call` on its outputs. `used` are its operands after redistribution: history follows the call's
// own, backward reads the used ones. The record shares `plan`.
void RecordCall(const ErasedCall& call, const ResolvedCall& plan, absl::Span<const DTensorRef> used,
                absl::Span<DTensor> outputs);

}  // namespace weft

#endif  // WEFT_DTENSOR_TAPE_OP_NODE_H_
