#ifndef WEFT_OPS_ELEMENTWISE_SELECT_H_
#define WEFT_OPS_ELEMENTWISE_SELECT_H_

#include <limits>

#include "ops/op/op.h"

namespace weft {

// Ops whose elements are elements of the operands, or bounds. Operands broadcast to their common shape.

// a where the bool condition holds, else b: condition a b -> y. Any one dtype of a and b.
extern const Op<> kWhere;

// x where the bool condition equals `value`, else 0: condition x -> y. Any dtype. What backward of `where`
// is.
struct KeepWhereAttributes {
  bool value = true;

  bool operator==(const KeepWhereAttributes&) const = default;
};
extern const Op<KeepWhereAttributes> kKeepWhere;

// The greater and the lesser of a and b, any dtype; NaN wins. The gradient goes to both in equal parts where
// they are equal, and whole to both where one is NaN, as in PyTorch.
extern const Op<> kMaximum;
extern const Op<> kMinimum;

// a b dy -> dy where a > b or one is NaN, half of it where a = b, else 0.
extern const Op<> kMaximumGrad;

// x cut to [min, max]: max if min > max; NaN stays.
// Dtypes: floating, i32 and i64. The gradient passes where min <= x <= max.
// Errors: InvalidArgument, from the kernel, for bounds that are NaN, or not whole for integers.
struct ClampScalars {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};
extern const Op<NoAttributes, ClampScalars> kClamp;

// x dy -> dy where min <= x <= max, else 0.
extern const Op<NoAttributes, ClampScalars> kClampGrad;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_SELECT_H_
