#ifndef WEFT_OPS_ELEMENTWISE_POWER_H_
#define WEFT_OPS_ELEMENTWISE_POWER_H_

#include "ops/op/op.h"

namespace weft {

// Powers.
// Dtypes: floating, i32 and i64 (which wrap).

// a to the power b, broadcast; as C's pow, so x^0 and 1^x are 1 for NaN too. A negative integer power of an
// integer is truncated toward zero, and 0 for a base of 0.
//
// Backward: as PyTorch, the base has gradient 0 where b is 0, the exponent where a is 0 and b >= 0.
extern const Op<> kPow;

// x to the power of a number. Exponents of a half, whole ones up to 3 in size, and 0 are computed without
// pow, as PyTorch does: sqrt(-0) is -0.
//
// Backward: 0 for an exponent of 0.
// Errors: InvalidArgument, from the kernel, for integers to a power that is negative or not whole.
struct PowerScalars {
  double exponent = 1;
};
extern const Op<NoAttributes, PowerScalars> kPowScalar;

// dy times the derivative: to a, as dy's type (a b dy); to b (a b dy); to x (x dy).
extern const Op<> kPowBaseGrad;
extern const Op<> kPowExponentGrad;
extern const Op<NoAttributes, PowerScalars> kPowScalarGrad;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_POWER_H_
