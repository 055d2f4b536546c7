#ifndef WEFT_DTENSOR_CALL_LAUNCH_KERNEL_H_
#define WEFT_DTENSOR_CALL_LAUNCH_KERNEL_H_

#include "absl/types/span.h"
#include "dtensor/call/erased_call.h"
#include "dtensor/context/mesh_context.h"
#include "ops/op/kernel_call.h"

namespace weft {

// The pieces of one call that lie on this rank, with their places in the whole: what a kernel reads and
// writes. Borrows all that it names.
struct LocalPieces {
  absl::Span<const Tensor> inputs = {};
  absl::Span<Tensor> outputs = {};
  absl::Span<const ShardBox> input_boxes = {};
  absl::Span<const ShardBox> output_boxes = {};
};

// Runs `kernel` on the pieces of `call` that lie on this rank, as a span of the trace: the one way from a call
// to its kernel. Nothing to do for a null kernel, which is that of a meta tensor.
//
// Errors: the kernel's.
void LaunchKernel(MeshContext& context, const ErasedCall& call, ErasedKernel kernel,
                  const LocalPieces& pieces);

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_LAUNCH_KERNEL_H_
