#ifndef WEFT_OPS_SHAPE_DIM_SOURCE_H_
#define WEFT_OPS_SHAPE_DIM_SOURCE_H_

#include <cstdint>
#include <vector>

#include "mesh/shard_math.h"
#include "ops/op/absent.h"
#include "ops/shape/flip_roll.h"
#include "ops/shape/pad.h"
#include "ops/shape/slice.h"
#include "ops/shape/strided_slice.h"

namespace weft {

// Where along one dim the global index `i` of y comes from: x's global index factor * i + shift, or `wrap` more
// if that is negative and `wrap` is not 0; with a divisor, that over the divisor. What lies outside the whole
// of x is nowhere in it, and so is what the divisor does not divide.
struct DimSource {
  bool is_mapped = false;  // false: the dim stays as it is, piece by piece
  int64_t factor = 1;
  int64_t shift = 0;
  int64_t wrap = 0;
  int64_t divisor = 1;
};

// How pieces of x become pieces of y, one dim at a time: what the kernels of every device evaluate.
struct Rearrangement {
  std::vector<DimSource> sources;  // per dim
  double nowhere = 0;              // what this rank gives for an element that is nowhere in x
};

// Those of the ops on this rank's piece of x, or of the gradient of a slice. Along dims that are split, the
// first piece gives what is nowhere, the others kAbsent.
Rearrangement PadRearrangement(const PadAttributes& a, const ShardBox& x, double value);
Rearrangement FlipRearrangement(const FlipAttributes& a, const ShardBox& x);
Rearrangement RollRearrangement(const RollAttributes& a, const ShardBox& x);
Rearrangement SliceGradRearrangement(const SliceGradAttributes& a, const ShardBox& dy);
Rearrangement StridedSliceRearrangement(const StridedSliceAttributes& a, const ShardBox& x);
Rearrangement StridedSliceGradRearrangement(const StridedSliceGradAttributes& a, const ShardBox& dy);

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_DIM_SOURCE_H_
