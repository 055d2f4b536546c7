// A value around a tensor.

#ifndef WEFT_OPS_SHAPE_PAD_H_
#define WEFT_OPS_SHAPE_PAD_H_

#include "ops/op/op.h"

namespace weft {

struct PadAttributes {
  Shape before;  // elements to add, per dim of x
  Shape after;

  bool operator==(const PadAttributes&) const = default;
};

struct PadScalars {
  double value = 0;
};

// x with elements added before and after it along its dims: zeros; or the value, converted to x's dtype. Two
// ops, since only the first is linear.
//
// Layout: where a padded dim of x is split, owners write what they have, the first of them the added elements
//         too, and leave zero elsewhere: Partial(sum). A rank that is to hold a range of y (see
//         GradContext::EmitLike) makes only that. The other dims may be split.
// Errors: InvalidArgument unless there are as many widths as dims, none negative (to crop, slice), and each sum
//         fits an i64.
extern const Op<PadAttributes> kPad;
extern const Op<PadAttributes, PadScalars> kPadValue;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_PAD_H_
