#ifndef WEFT_DTENSOR_CALL_LAUNCH_KERNEL_H_
#define WEFT_DTENSOR_CALL_LAUNCH_KERNEL_H_

#include "dtensor/context/mesh_context.h"
#include "ops/op/kernel_call.h"
#include "ops/op/op.h"
#include "runtime/trace/span.h"

namespace weft {

// Runs `kernel` of `op` on the pieces that lie on this rank, as a span of the trace: the one way to a kernel,
// but for a batch of calls, which dispatch runs. Nothing to do for a null kernel, which is that of a meta
// tensor. Inlined, and without a copy of `pieces`: each would be 1% of a cached call.
//
// Errors: the kernel's.
[[gnu::always_inline]] inline void LaunchKernel(MeshContext& context, const OpDef& op, ErasedKernel kernel,
                                                const KernelCallBase& pieces) {
  if (kernel == nullptr) return;
  Tracer* const tracer = context.world().tracer();
  // Without a tracer nobody measures the name, whose length would have to be counted.
  const Span span(tracer, context.world().rank(), "op", tracer == nullptr ? "" : op.name());
  op.Invoke(kernel, pieces);
}

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_LAUNCH_KERNEL_H_
