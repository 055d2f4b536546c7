#ifndef WEFT_DTENSOR_FUNCTIONS_SLICES_H_
#define WEFT_DTENSOR_FUNCTIONS_SLICES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "dtensor/dtensor.h"

// Parts of a tensor by start:stop:step, as Python writes them, and a tensor with such a part replaced.
namespace weft {

// start, start + step, ... below stop. Both are cut to the dim; negative ones count from its end; one that is
// not given is the dim's own.
// Errors: of what takes one, InvalidArgument for a step below 1 (as PyTorch; to reverse a dim, Flip).
struct SliceRange {
  std::optional<int64_t> start = std::nullopt;
  std::optional<int64_t> stop = std::nullopt;
  int64_t step = 1;
};

// Layout: as Slice of neighbours (dtensor/functions/shape.h), but that in steps above 1 along a dim that is
//         split each rank writes what it holds, and the result is reduce-scattered.
// Cost:   where such a dim is split, one all-to-all for a range of step 1, one reduce-scatter for another.
// Errors: InvalidArgument for a dim outside x, a step below 1, or more ranges than dims.
DTensor Slice(const DTensor& x, int dim, const SliceRange& range);
// x[ranges[0], ranges[1], ...]; dims that no range is given for are whole.
DTensor Slice(const DTensor& x, const std::vector<SliceRange>& ranges);
// x[..., index, ...] without the dim; a negative index counts from its end.
// Errors: InvalidArgument for an index outside the dim.
DTensor Select(const DTensor& x, int dim, int64_t index);

// x with `src` in place of such a part: `x[...] = src` as a value, since tensors do not change. Gradients go
// to x where it stays, and to src.
//
// Shape:  src has that part's shape: nothing is broadcast.
// Layout: as x, which is not moved; along axes where x is replicated and src is split in another dim, as src. Along the dim
//         src is gathered.
// Cost:   an all-gather of src where it is split along the dim; else none.
// Errors: InvalidArgument for a src of another shape or dtype.
DTensor SliceScatter(const DTensor& x, const DTensor& src, int dim, const SliceRange& range);
DTensor SliceScatter(const DTensor& x, const DTensor& src, const std::vector<SliceRange>& ranges);
DTensor SelectScatter(const DTensor& x, const DTensor& src, int dim, int64_t index);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_SLICES_H_
