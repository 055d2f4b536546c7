// Sorting along a dim.

#ifndef WEFT_OPS_INDEXING_SORT_H_
#define WEFT_OPS_INDEXING_SORT_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

struct SortAttributes {
  int dim = 0;
  bool descending = false;

  bool operator==(const SortAttributes&) const = default;
};

// x sorted along a dim, and where each element stood. NaN is greater than all numbers, -0 equals 0, and equal
// elements keep their order (PyTorch's stable sort), in either direction.
//
// Shape:  x of any dtype -> values of its type, indices i64 of its shape.
// Layout: the dim is whole: a split one is gathered. Its gradient goes back to the indices, where the operand
//         lies.
// Errors: InvalidArgument for a dim outside x.
extern const Op<SortAttributes> kSort;

struct SelectionAttributes {
  int dim = 0;
  int64_t extent = 0;  // of the dim in the result

  bool operator==(const SelectionAttributes&) const = default;
};

// indices dy -> dx, zero but for dx[..., indices[..., j, ...], ...] += dy[..., j, ...]: the gradient of
// elements that were selected along a dim.
//
// Shape:  indices i64 and dy, floating, of one shape; dx of that but for the dim.
// Layout: a rank that holds a range of the dim makes only that (GradContext::EmitLike); Partial(sum) where
//         the selection is split.
// Errors: InvalidArgument for other types; from the kernel, for an index outside the extent.
extern const Op<SelectionAttributes> kSelectionGrad;

}  // namespace weft

#endif  // WEFT_OPS_INDEXING_SORT_H_
