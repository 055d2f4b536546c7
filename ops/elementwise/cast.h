// Elements in another dtype.

#ifndef WEFT_OPS_ELEMENTWISE_CAST_H_
#define WEFT_OPS_ELEMENTWISE_CAST_H_

#include "ops/op/op.h"

namespace weft {

struct CastAttributes {
  DType dtype = DType::kF32;

  bool operator==(const CastAttributes&) const = default;
};

// x in another floating dtype, rounded to nearest.
//
// Layout: every dim may be split. Linear up to rounding, so a Partial passes through: one that should be
//         summed in f32 is reduced before it is cast down.
// Errors: InvalidArgument if the dtype is not floating: use `convert`, which is not linear.
extern const Op<CastAttributes> kCast;

// x in any dtype: to integers toward zero, to bool by whether it is not 0. Not differentiable, and no Partial
// passes.
extern const Op<CastAttributes> kConvert;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_CAST_H_
