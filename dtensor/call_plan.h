#ifndef WEFT_DTENSOR_CALL_PLAN_H_
#define WEFT_DTENSOR_CALL_PLAN_H_

#include "dtensor/dtensor.h"
#include "dtensor/mesh_context.h"
#include "dtensor/propagation_cache.h"
#include "ops/op.h"

namespace weft {

// How a call of `op` runs on this rank: from the context's propagation cache, or worked out and put there. It
// holds until the next call is planned; share it to keep it longer.
//
// Cost:   a cached plan some tens of nanoseconds; else inference and Propagate.
// Errors: InvalidArgument for a wrong number of operands and for what inference or propagation refuses;
//         Unimplemented where the device lacks the kernel.
const CallPlan& PlanCall(MeshContext& context, const OpDef& op, absl::Span<const DTensorRef> operands,
                         const void* attributes, const Layout* like);

// Errors: InvalidArgument if `op` does not take `count` operands.
void CheckOperandCount(const OpDef& op, size_t count);

// The kernel of `op` on `device`; null on meta but for views, which compute shapes.
// Errors: Unimplemented where there is none.
ErasedKernel KernelFor(const OpDef& op, const Device& device);

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_PLAN_H_
