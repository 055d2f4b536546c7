#ifndef WEFT_TOOLS_RULES_LOCAL_KERNEL_H_
#define WEFT_TOOLS_RULES_LOCAL_KERNEL_H_

#include <vector>

#include "absl/types/span.h"
#include "mesh/shard_math.h"
#include "ops/op/kernel_call.h"
#include "ops/op/op.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// What one rank holds of a tensor: the elements, and where they lie in the whole.
struct Piece {
  Tensor tensor;
  ShardBox box;
};

// One call of the op's kernel on pieces of its operands, on the device of the context's allocator: the kernel
// alone, no dispatch. Output i is the piece that output_boxes[i] says; output types are inferred from the
// global shapes in the boxes. In-place operands are overwritten.
//
// Errors: the op's own; Unimplemented, naming the op, if it has no such kernel; Internal if a piece is not of
//         its box's shape, or what a kernel of a view returns is not of the inferred type.
std::vector<Tensor> RunKernel(const OpDef& op, KernelContext& context, absl::Span<const Piece> operands,
                              absl::Span<const ShardBox> output_boxes, const void* attributes,
                              const void* scalars);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_LOCAL_KERNEL_H_
