#include "dtensor/functions/slices.h"

#include <algorithm>

#include "dtensor/dispatch.h"
#include "dtensor/functions/rearrange.h"
#include "dtensor/functions/shape.h"
#include "ops/shape/strided_slice.h"

namespace weft {
namespace {

// Python's rule: negative ends count from the last, and both are cut to [0, extent]. A slice of one element is one of
// neighbours, whose gradient is a view.
StridedSliceAttributes Resolve(absl::string_view what, const DTensor& x, int dim, const SliceRange& range) {
  const int at = NormalizeDim(dim, x.ndim(), what);
  WEFT_REQUIRE(range.step >= 1, what, ": expected a positive step, got ", range.step,
               "; Flip reverses a dim");
  const int64_t extent = x.shape()[at];
  const auto place = [&](int64_t end) {
    return std::clamp<int64_t>(end < 0 ? end + extent : end, 0, extent);
  };
  const int64_t start = place(range.start.value_or(0));
  const int64_t stop = range.stop ? place(*range.stop) : extent;
  const int64_t length = stop <= start ? 0 : (stop - start - 1) / range.step + 1;
  return {.dim = at, .start = start, .length = length, .step = length <= 1 ? 1 : range.step};
}

int64_t ResolveIndex(absl::string_view what, const DTensor& x, int dim, int64_t index) {
  const int64_t extent = x.shape()[dim];
  WEFT_REQUIRE(index >= -extent && index < extent, what, ": index ", index, " is outside dim ", dim, " of ",
               x.ToString());
  return index < 0 ? index + extent : index;
}

void RequireFewEnough(absl::string_view what, const DTensor& x, const std::vector<SliceRange>& ranges) {
  WEFT_REQUIRE(static_cast<int>(ranges.size()) <= x.ndim(), what, ": got ", ranges.size(), " ranges for ",
               x.ToString());
}

// From the first range on: the part of x that it names, with src put into that by the ranges after it.
DTensor PutAt(const DTensor& x, const DTensor& src, const std::vector<SliceRange>& ranges, int dim) {
  if (dim == static_cast<int>(ranges.size())) return src;
  const bool last = dim + 1 == static_cast<int>(ranges.size());
  const DTensor part = last ? src : PutAt(Slice(x, dim, ranges[dim]), src, ranges, dim + 1);
  return SliceScatter(x, part, dim, ranges[dim]);
}

}  // namespace

DTensor Slice(const DTensor& x, int dim, const SliceRange& range) {
  const StridedSliceAttributes a = Resolve("Slice", x, dim, range);
  if (a.step == 1) return Slice(x, a.dim, a.start, a.length);
  const DTensor y = Call(kStridedSlice, {x}, a);
  return CanRearrange(x, a.dim, a.length) ? SplitAs(kStridedSlice.name(), x, y, a.dim) : y;
}

DTensor Slice(const DTensor& x, const std::vector<SliceRange>& ranges) {
  RequireFewEnough("Slice", x, ranges);
  DTensor y = x;
  for (size_t dim = 0; dim < ranges.size(); ++dim) y = Slice(y, static_cast<int>(dim), ranges[dim]);
  return y;
}

DTensor Select(const DTensor& x, int dim, int64_t index) {
  const int at = NormalizeDim(dim, x.ndim(), "Select");
  return Squeeze(Slice(x, at, ResolveIndex("Select", x, at, index), 1), at);
}

DTensor SliceScatter(const DTensor& x, const DTensor& src, int dim, const SliceRange& range) {
  return Call(kSliceScatter, {x, src}, Resolve("SliceScatter", x, dim, range));
}

DTensor SliceScatter(const DTensor& x, const DTensor& src, const std::vector<SliceRange>& ranges) {
  RequireFewEnough("SliceScatter", x, ranges);
  if (!ranges.empty()) return PutAt(x, src, ranges, 0);
  WEFT_REQUIRE(src.type() == x.type(), "SliceScatter: src must be ", x.ToString(), ", got ", src.ToString());
  return src;
}

DTensor SelectScatter(const DTensor& x, const DTensor& src, int dim, int64_t index) {
  const int at = NormalizeDim(dim, x.ndim(), "SelectScatter");
  const int64_t place = ResolveIndex("SelectScatter", x, at, index);
  return SliceScatter(x, Unsqueeze(src, at), at, {.start = place, .stop = place + 1});
}

}  // namespace weft
