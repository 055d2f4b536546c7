#ifndef WEFT_OPS_SHAPE_STRIDED_SLICE_H_
#define WEFT_OPS_SHAPE_STRIDED_SLICE_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// The places start, start + step, ... of one dim: `length` of them.
struct StridedSliceAttributes {
  int dim = 0;
  int64_t start = 0;
  int64_t length = 0;
  int64_t step = 1;

  bool operator==(const StridedSliceAttributes&) const = default;
};

// The elements of x at those places, copied. (Neighbours, of step 1, are a view: kSlice.)
//
// Layout: where the sliced dim is split, the owners of what is taken give it and the others zero:
//         Partial(sum). The other dims may be split.
// Errors: InvalidArgument for a dim outside x, a step below 1, or places outside the dim.
extern const Op<StridedSliceAttributes> kStridedSlice;

struct StridedSliceGradAttributes {
  int dim = 0;
  int64_t start = 0;
  int64_t step = 1;
  int64_t extent = 0;  // of the dim in the result

  bool operator==(const StridedSliceGradAttributes&) const = default;
};

// dy at the places, zero elsewhere: the gradient of such a slice. Partial(sum) where that dim of dy is split;
// a rank that holds a range of dx makes only that (see GradContext::EmitLike).
extern const Op<StridedSliceGradAttributes> kStridedSliceGrad;

// (x, src): x with src at those places, of src's extent along the dim: assignment to a slice, as a value.
//
// Shape:  src of x's type but for the dim, where it has `length`.
// Layout: all dims of x may be split, and src as x but along the dim, where it is whole: each rank puts what falls
//         into its piece of y.
// Errors: as above, and InvalidArgument for a src of another type.
extern const Op<StridedSliceAttributes> kSliceScatter;

// x with zeros at those places: the gradient of what kSliceScatter keeps.
//
// Errors: as kStridedSlice.
extern const Op<StridedSliceAttributes> kSliceZero;

// The local places of one piece of the dim that a strided slice names: those of its `count` elements from
// `first` on are start + first * step - offset, and `step` further for each of the next.
struct LocalPlaces {
  int64_t first = 0;
  int64_t count = 0;
};
inline LocalPlaces PlacesIn(const StridedSliceAttributes& a, int64_t offset, int64_t extent) {
  // The number of elements of the slice that stand before place `end`.
  const auto before = [&](int64_t end) {
    const int64_t count = end <= a.start ? 0 : (end - a.start - 1) / a.step + 1;
    return count < a.length ? count : a.length;
  };
  return {before(offset), before(offset + extent) - before(offset)};
}

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_STRIDED_SLICE_H_
