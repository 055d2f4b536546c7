#ifndef WEFT_RUNTIME_COMM_VECTOR_REDUCTION_H_
#define WEFT_RUNTIME_COMM_VECTOR_REDUCTION_H_

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"

namespace weft {

// One pass over the inputs that leaves their reduction in every output: the part of ReduceInOrder that is
// done in vectors, as wide as the machine has them. Views the caller's memory.
struct VectorPass {
  absl::Span<const void* const> inputs;  // at least one
  absl::Span<void* const> outputs;       // each may be one of the inputs, at the same position
  int64_t num_bytes = 0;                 // of each
  bool stream = false;                   // past the caches, if all outputs lie on multiples of 64 bytes
};

// Reduces the leading bytes that fill whole steps and returns how many those are, a multiple of the item
// size: the rest, under 256 bytes, is the caller's, and all of it for kAvg and for a dtype other than f32, f64 and bf16.
// The bits are ReduceInOrder's.
int64_t ReduceVectors(DType dtype, ReduceOp op, const VectorPass& pass);

// The same for a copy of inputs[0].
int64_t CopyVectors(const VectorPass& pass);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_VECTOR_REDUCTION_H_
