// The index of the largest or smallest element along a dim.

#ifndef WEFT_OPS_REDUCE_ARGMAX_H_
#define WEFT_OPS_REDUCE_ARGMAX_H_

#include "ops/op/op.h"

namespace weft {

struct ArgAttributes {
  int dim = 0;
  bool keepdims = false;  // the dim stays, of extent 1

  bool operator==(const ArgAttributes&) const = default;
};

// The index of the largest or smallest element along a dim: the lowest of several. A NaN counts as both, as
// in PyTorch. Not differentiable.
//
// Shape:  x floating, i32, i64, u8 or bool -> i64, without the dim.
// Layout: a split dim is decomposed: two numbers per row are all-reduced, the extremum and its index.
// Errors: InvalidArgument for a dim outside x, or an empty one.
extern const Op<ArgAttributes> kArgMax;
extern const Op<ArgAttributes> kArgMin;

// x value -> the lowest index along the dim at which x is `value` (NaN is NaN), 2^63 - 1 where there is none.
// Partial(min) where the dim is split: the finishing step of the decomposition.
extern const Op<ArgAttributes> kIndexOf;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_ARGMAX_H_
