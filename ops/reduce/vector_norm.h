// Norms of vectors along dims.

#ifndef WEFT_OPS_REDUCE_VECTOR_NORM_H_
#define WEFT_OPS_REDUCE_VECTOR_NORM_H_

#include "ops/op/op.h"
#include "ops/reduce/reduce.h"

namespace weft {

struct NormAttributes {
  DimMask dims = 0;
  bool keepdims = false;
  double p = 2;

  ReduceAttributes Reduce() const { return {.dims = dims, .keepdims = keepdims}; }
  bool operator==(const NormAttributes&) const = default;
};

// y = (sum |x|^p)^(1 / p) over dims; for p of inf and -inf the largest and smallest |x|, for 0 the number of
// x that are not 0. The gradient is sign(x) * (|x| / y)^(p - 1) * dy and 0 where x or y is 0 (where y is, of an
// infinite dy too); of an extremum, equal parts to the elements that are it.
//
// Shape:  x, floating; y of its dtype. Powers are summed in double, also across ranks: they overflow early.
// Layout: split dims are decomposed: one f64 is all-reduced for each result.
// Errors: InvalidArgument for another dtype, dims outside x, p that is nan, or an extremum over an empty dim.
extern const Op<NormAttributes> kVectorNorm;

// x y dy -> dx. Of an extremum, dy is the share of one element.
extern const Op<NormAttributes> kVectorNormGrad;

// The steps of the decomposition. x -> sum |x|^p, or the extremum of |x|, f64: Partial(sum), (max), (min).
extern const Op<NormAttributes> kPowerSum;
// x y -> how many |x| equal y: f64 for f64, else f32, since f16 counts no further than 65504.
extern const Op<NormAttributes> kNormTies;

struct NormFinishAttributes {
  double p = 2;
  DType dtype = DType::kF32;  // of the result

  bool operator==(const NormFinishAttributes&) const = default;
};

// The power sum -> y.
extern const Op<NormFinishAttributes> kNormFinish;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_VECTOR_NORM_H_
