#ifndef WEFT_OPS_REDUCE_ROW_REDUCTIONS_H_
#define WEFT_OPS_REDUCE_ROW_REDUCTIONS_H_

#include "ops/op/op.h"

namespace weft {

// Statistics of rows: one number for the last dim of x [..., n], f64 for f64 and f32 for the other floating
// types. Splitting the last dim makes them Partial, so they are what the decompositions of softmax, norms and
// cross-entropy are made of. Not differentiable: decompositions are not recorded.

// y = max x; -inf where the last dim is empty, nan where there is one. Partial(max).
extern const Op<> kRowMax;
// y = sum x.
extern const Op<> kRowSum;
// y = sum a * b.
extern const Op<> kRowDot;
// y = sum exp(x - max), max [...]; 0 where max is -inf.
extern const Op<> kRowExpSum;
// y = (sum x) / n, n the global extent; 0 where that is 0.
extern const Op<> kRowMean;
// y = (sum x^2) / n.
extern const Op<> kRowMeanSquare;
// y = (sum (x - mean)^2) / n, mean [...].
extern const Op<> kRowVariance;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_ROW_REDUCTIONS_H_
