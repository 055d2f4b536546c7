#ifndef WEFT_OPS_REDUCE_LOG_SUM_EXP_H_
#define WEFT_OPS_REDUCE_LOG_SUM_EXP_H_

#include "ops/op/op.h"
#include "ops/reduce/reduce.h"

namespace weft {

// y = log(sum exp(x)) over dims, shifted by the maximum: finite wherever the result is. -inf of nothing and
// of rows of -inf, inf where there is an inf, nan where there is a nan. The gradient is exp(x - y) * dy, but
// 0 where y is -inf (PyTorch's is nan there).
//
// Shape:  x, floating; y of its dtype.
// Layout: split dims are decomposed: two numbers are all-reduced for each result, the maximum and the sum.
// Errors: InvalidArgument for another dtype or dims outside x.
extern const Op<ReduceAttributes> kLogSumExp;

// x y dy -> dx = exp(x - y) * dy.
extern const Op<ReduceAttributes> kLogSumExpGrad;

// The steps of the decomposition. x max -> sum exp(x - max), f64 for f64, otherwise f32; 0 where max is not
// finite.
extern const Op<ReduceAttributes> kExpSum;
// max sum -> max + log(sum), or max where that is not finite.
extern const Op<> kLogSumExpFinish;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_LOG_SUM_EXP_H_
