#ifndef WEFT_OPS_ELEMENTWISE_MAGNITUDE_H_
#define WEFT_OPS_ELEMENTWISE_MAGNITUDE_H_

#include "ops/op/op.h"

namespace weft {

// |x| and the sign of x. Dtypes: floating, i32 and i64 (the least integer is its own magnitude: it wraps).

// |NaN| is NaN; the gradient at 0 is 0, as in PyTorch.
extern const Op<> kAbs;
// 1, 0 or -1; 0 for NaN, as in PyTorch. Not differentiable.
extern const Op<> kSign;

// x dy -> dx: dy, 0 or -dy by the sign of x.
extern const Op<> kAbsGrad;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_MAGNITUDE_H_
