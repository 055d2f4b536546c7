// Elements in another dtype.

#ifndef WEFT_OPS_ELEMENTWISE_CAST_H_
#define WEFT_OPS_ELEMENTWISE_CAST_H_

#include "ops/op/op.h"
#include "runtime/base/dtype.h"

namespace weft {

struct CastAttributes {
  DType dtype = DType::kF32;

  bool operator==(const CastAttributes&) const = default;
};

// Whether the terms of a sum stay what they are in another dtype, but for rounding: not where that has a smaller greatest
// number, where terms may be infinite whose sum is not; nor from integers, whose sums wrap, and bools, whose sums are "or".
constexpr bool KeepsTerms(DType from, DType to) {
  if (from == to) return true;
  return IsFloating(from) && (to == DType::kF64 || (from != DType::kF64 && to != DType::kF16));
}

// Whether a tensor that lies so may be cast as it lies, without a reduction before.
inline bool CastsAsItLies(DType from, DType to, const Layout& layout) {
  return KeepsTerms(from, to) || !layout.HasPartial();
}

// x in another floating dtype, rounded to nearest.
//
// Layout: every dim may be split. Linear up to rounding, so a Partial passes through: one that should be
//         summed in f32, or whose terms the dtype may not hold (KeepsTerms), is reduced before it is cast, as the
//         function Cast and the gradient do.
// Errors: InvalidArgument if the dtype is not floating: use `convert`, which is not linear.
extern const Op<CastAttributes> kCast;

// x in any dtype: to integers toward zero, to bool by whether it is not 0. Not differentiable, and no Partial
// passes.
extern const Op<CastAttributes> kConvert;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_CAST_H_
