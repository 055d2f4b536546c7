#ifndef WEFT_DTENSOR_CALL_RESOLVE_CALL_H_
#define WEFT_DTENSOR_CALL_RESOLVE_CALL_H_

#include "dtensor/call/erased_call.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/context/resolved_call.h"
#include "ops/op/op.h"

namespace weft {

// How `call` runs on this rank: from the context's propagation cache, or worked out and put there. It
// holds until the next call is planned; share it to keep it longer.
//
// Cost:   a cached plan some tens of nanoseconds; else inference and Propagate.
// Errors: InvalidArgument for a wrong number of operands and for what inference or propagation refuses;
//         Unimplemented where the device lacks the kernel; ThrowAbsent's.
const ResolvedCall& ResolveCall(MeshContext& context, const ErasedCall& call);

// Errors: FailedPrecondition, always: one of the operands is absent.
[[noreturn]] void ThrowAbsent(const ErasedCall& call);

// Errors: InvalidArgument if `op` does not take `count` operands.
void CheckOperandCount(const OpDef& op, size_t count);

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_RESOLVE_CALL_H_
