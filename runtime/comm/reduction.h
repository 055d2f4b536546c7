#ifndef WEFT_RUNTIME_COMM_REDUCTION_H_
#define WEFT_RUNTIME_COMM_REDUCTION_H_

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"

namespace weft {

// Writes to output[i] the reduction of inputs[0][i], inputs[1][i], ... in that order: what every backend
// means by a reduction over group ranks.
//
// f32 and f64 combine in their own precision; bf16 and f16 in float, rounded once at the end. Integers
// combine in 64 bits and wrap to their type; their kAvg divides the 64-bit sum, truncating toward zero. For
// bool, sum and max are "any", product, min and avg are "all" (a truncated mean is 1 only if all are). NaN
// wins in min and max.
//
// Shape: `count` elements each; at least one input. `output` may be one of the inputs, at the same position.
// Cost:  one pass over the inputs, in blocks that stay in the first-level cache; no allocation.
void ReduceInOrder(DType dtype, ReduceOp op, absl::Span<const void* const> inputs, void* output,
                   int64_t count);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_REDUCTION_H_
