// Mean and variance over dims.

#ifndef WEFT_OPS_REDUCE_VARIANCE_H_
#define WEFT_OPS_REDUCE_VARIANCE_H_

#include "ops/op/op.h"
#include "ops/reduce/reduce.h"

namespace weft {

struct VarianceAttributes {
  DimMask dims = 0;
  bool keepdims = false;
  double correction = 1;  // subtracted from the number of elements in the divisor

  ReduceAttributes Reduce() const { return {.dims = dims, .keepdims = keepdims}; }
  bool operator==(const VarianceAttributes&) const = default;
};

// variance: y = sum (x - mean)^2 / max(0, N - correction) over dims, N their number of elements in the global
// tensor: nan where nothing is left to divide by nothing. std: its square root, whose gradient at 0 is 0, as
// in PyTorch. The squares are of differences from the mean, not of x: no cancellation.
//
// Shape:  x, floating; y of its dtype, mean of its shape with reduced dims of extent 1, f64 for f64 and else
//         f32.
//         The squares are added up in double: those of f32 overflow where their root does not.
// Layout: split dims are decomposed: two numbers are all-reduced for each result, the mean and then the
//         centred squares, for a root as f64; the variance of f32 and f64 is left Partial(sum).
// Errors: InvalidArgument for another dtype or dims outside x.
extern const Op<VarianceAttributes> kVariance;
extern const Op<VarianceAttributes> kStd;

// x mean dy -> dx = dy * (x - mean) * 2 / (N - correction). Both gradients are nan where that is not above 0.
extern const Op<VarianceAttributes> kVarianceGrad;
// x mean y dy -> dx = dy * (x - mean) / (y * (N - correction)), 0 where y is 0.
extern const Op<VarianceAttributes> kStdGrad;

// The steps of the decomposition. x -> mean, with reduced dims of extent 1.
extern const Op<ReduceAttributes> kMeanStatistic;
// x mean -> sum (x - mean)^2, f64.
extern const Op<ReduceAttributes> kCenteredSquares;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_VARIANCE_H_
