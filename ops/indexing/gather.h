#ifndef WEFT_OPS_INDEXING_GATHER_H_
#define WEFT_OPS_INDEXING_GATHER_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// Ops that name a place along one dim for every element, by a block of indices, i32 or i64, of as many dims.
//
// Shape:  the operands have equal extents in all other dims (PyTorch takes the leading part of the longer:
//         the functions do that by slices).
// Errors: InvalidArgument from inference for a dim outside the operand or extents that differ; from the
//         kernel, naming the first index outside [0, extent) and its global position.

struct GatherAttributes {
  int dim = 0;

  bool operator==(const GatherAttributes&) const = default;
};

// (x, index): y[o, j, k] = x[o, index[o, j, k], k], of index's shape.
//
// Layout: where the dim of x is split, the owner of an element gives it and the others zero: Partial(sum).
//         The dim of the index, and all other dims, may be split.
extern const Op<GatherAttributes> kGather;

struct ScatterSumAttributes {
  int dim = 0;
  int64_t extent = 0;   // of the dim in the result
  bool to_add = false;  // y is to be added to a tensor: sums begin with kAbsent (ops/op/absent.h)

  bool operator==(const ScatterSumAttributes&) const = default;
};

// (index, src): y[o, v, k] is the sum of src[o, j, k] over the j with index[o, j, k] = v, in their order;
// halves are added in float and rounded once.
//
// Dtypes: f32, f64, bf16, f16, i32, i64.
// Layout: Partial(sum) where the dim of index and src is split; a rank that is to hold a range of y (see
//         GradContext::EmitLike) makes only that. All other dims may be split.
extern const Op<ScatterSumAttributes> kScatterSum;

}  // namespace weft

#endif  // WEFT_OPS_INDEXING_GATHER_H_
