// A range of each dim.

#ifndef WEFT_OPS_SHAPE_SLICE_H_
#define WEFT_OPS_SHAPE_SLICE_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

struct SliceAttributes {
  int dim = 0;
  int64_t start = 0;
  int64_t length = 0;

  bool operator==(const SliceAttributes&) const = default;
};

struct SliceGradAttributes {
  int dim = 0;
  int64_t start = 0;
  int64_t extent = 0;  // of the dim in the result

  bool operator==(const SliceGradAttributes&) const = default;
};

// The elements [start, start + length) of one dim of x: a view, but for the case below.
//
// Layout: where the sliced dim is split, the owners of what is taken give it and the others zero (a new
//         tensor): Partial(sum). Only what was taken is then left to move. The other dims may be split.
// Errors: InvalidArgument for a dim or a range outside x.
extern const Op<SliceAttributes> kSlice;

// dy with zeros before and after it along one dim: the gradient of a slice. Partial(sum) where that dim of dy
// is split; a rank that holds a range of dx makes only that (see GradContext::EmitLike).
extern const Op<SliceGradAttributes> kSliceGrad;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_SLICE_H_
