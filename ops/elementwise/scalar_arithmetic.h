#ifndef WEFT_OPS_ELEMENTWISE_SCALAR_ARITHMETIC_H_
#define WEFT_OPS_ELEMENTWISE_SCALAR_ARITHMETIC_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// Arithmetic of a tensor and a number, which is a run-time scalar: no tensor is made of it, and another
// number is the same cached call. Halves compute in float, the number included. x * number is kScale.

// x + shift, or shift - x if `negate`: so x + c, x - c and c - x in one pass. Any numeric dtype; integers
// wrap.
//
// Layout: not linear, so a Partial x is reduced first: each term would add the shift.
// Errors: InvalidArgument, from the kernel, for integers plus a number that is not whole.
struct ShiftScalars {
  bool negate = false;
  double shift = 0;
};
extern const Op<NoAttributes, ShiftScalars> kShift;

// A whole number as a sum of two that doubles hold: shifts by one and then by the other are exact.
struct ExactTerms {
  double high = 0;
  double low = 0;  // 0 for a number of at most 2^53 in size
};
ExactTerms ExactTermsOf(int64_t number);

// x / divisor, rounded once: not x times a rounded reciprocal. Floating dtypes.
struct DivScalars {
  double divisor = 1;
};
extern const Op<NoAttributes, DivScalars> kDivScalar;

// dividend / x. Floating dtypes.
struct QuotientScalars {
  double dividend = 1;
};
extern const Op<NoAttributes, QuotientScalars> kScalarDiv;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_SCALAR_ARITHMETIC_H_
