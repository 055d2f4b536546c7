#ifndef WEFT_OPS_ELEMENTWISE_COMPARE_H_
#define WEFT_OPS_ELEMENTWISE_COMPARE_H_

#include "ops/op/op.h"

namespace weft {

// Comparisons of two operands of one dtype, any dtype, broadcast to their common shape; the output is bool.
// As in C, NaN is unequal to everything and neither less nor greater; -0 equals 0.
extern const Op<> kEqual;
extern const Op<> kNotEqual;
extern const Op<> kLess;
extern const Op<> kLessEqual;
extern const Op<> kGreater;
extern const Op<> kGreaterEqual;

// Whether each element of a floating x is NaN; whether it is neither NaN nor infinite. Output bool.
extern const Op<> kIsNan;
extern const Op<> kIsFinite;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_COMPARE_H_
