#ifndef WEFT_OPS_INDEXING_INDEX_SELECT_H_
#define WEFT_OPS_INDEXING_INDEX_SELECT_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// Ops that name places along one dim by a list of indices, i32 or i64, [m].
//
// Errors: InvalidArgument from inference for a dim outside the operand or an index that is not such a list;
//         from the kernel, naming the first index outside [0, extent) and its global position. Negative ones
//         do not count from the end.

struct IndexAttributes {
  int dim = 0;

  bool operator==(const IndexAttributes&) const = default;
};

// (x, index): y[..., j, ...] = x[..., index[j], ...].
//
// Layout: where the dim is split, the owner of an element gives it and the others zero: Partial(sum). The
//         index and all other dims may be split.
extern const Op<IndexAttributes> kIndexSelect;

struct IndexAddAttributes {
  int dim = 0;
  int64_t extent = 0;   // of the dim in the result
  bool to_add = false;  // y is to be added to a tensor: sums begin with kAbsent (ops/op/absent.h)

  bool operator==(const IndexAddAttributes&) const = default;
};

// (index, src): y[..., v, ...] is the sum of src[..., j, ...] over the j with index[j] = v, in their order;
// halves are added in float and rounded once.
//
// Dtypes: f32, f64, bf16, f16, i32, i64.
// Layout: Partial(sum) where the list is split; a rank that is to hold a range of y (see
//         GradContext::EmitLike) makes only that. All other dims may be split.
extern const Op<IndexAddAttributes> kIndexAdd;

struct IndexZeroAttributes {
  int dim = 0;
  bool to_add = false;  // y is to be added to a tensor: the zeros are kAbsent

  bool operator==(const IndexZeroAttributes&) const = default;
};

// (x, index): x with zeros at every index[j] of the dim.
//
// Layout: every dim of x may be split; the index is whole.
// Errors: besides, InvalidArgument from the kernel for an index that is listed twice: what is put there
//         afterwards would depend on the order. On CUDA its places are nan (0 in integers) instead, as is the place nearest to
//         an index outside the dim (unchanged in integers).
extern const Op<IndexZeroAttributes> kIndexZero;

}  // namespace weft

#endif  // WEFT_OPS_INDEXING_INDEX_SELECT_H_
