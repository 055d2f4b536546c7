#ifndef WEFT_RUNTIME_COMM_REDUCTION_H_
#define WEFT_RUNTIME_COMM_REDUCTION_H_

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"

namespace weft {

// How results are written: through the caches, or past them to memory. The latter is for what the caches
// cannot hold till it is read again: it saves reading the old contents.
enum class Stores { kCached, kStreaming };

// kStreaming for a buffer of `num_bytes` that each of `num_copies` ranks writes at once, if all of it is more
// than the last-level cache.
Stores StoresFor(int64_t num_bytes, int64_t num_copies);

// Writes to outputs[...][i] the reduction of inputs[0][i], inputs[1][i], ... in that order: what every
// backend means by a reduction over group ranks.
//
// f32 and f64 combine in their own precision; bf16 and f16 in float, rounded once at the end. Integers
// combine in 64 bits and wrap to their type. kAvg divides a sum in a wider type (f64's in long double, other floats' in
// double, i64's in 128 bits), truncating integers toward zero: the average of equal terms is their value, whatever it is.
// For bool, sum and max are "any", product, min and avg are "all" (a truncated mean is 1 only if all are). NaN
// wins in min and max.
//
// Shape:  `count` elements each; at least one input. An output may be one of the inputs, at the same
//         position.
// Cost:   one pass over inputs and outputs, each byte touched once; no allocation. f32, f64 and bf16 in
//         vectors, the rest and averages in blocks that stay in the first-level cache.
void ReduceInOrder(DType dtype, ReduceOp op, absl::Span<const void* const> inputs,
                   absl::Span<void* const> outputs, int64_t count, Stores stores = Stores::kCached);

// Copies `input` to every one of `outputs`, which do not overlap it.
void CopyToAll(const void* input, absl::Span<void* const> outputs, int64_t num_bytes, Stores stores);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_REDUCTION_H_
