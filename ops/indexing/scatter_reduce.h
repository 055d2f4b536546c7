// Elements combined at places that an index names.

#ifndef WEFT_OPS_INDEXING_SCATTER_REDUCE_H_
#define WEFT_OPS_INDEXING_SCATTER_REDUCE_H_

#include <cstdint>

#include "ops/op/op.h"
#include "runtime/base/reduce_op.h"

namespace weft {

struct ScatterReduceAttributes {
  int dim = 0;
  ReduceOp reduce = ReduceOp::kMax;  // kMax, kMin or kProduct; sums are kScatterSum
  // Whether x's elements are among what is reduced also where some src goes. If not, the caller has put there what
  // changes no result, and no part of an extremum's gradient goes there.
  bool counts_x = true;

  bool operator==(const ScatterReduceAttributes&) const = default;
};

// (x, index, src): y[o, v, k] is the extremum, or the product, of x[o, v, k] and the src[o, j, k] with
// index[o, j, k] = v, in the order of j. NaN wins an extremum; halves are multiplied in float and rounded once.
// The gradient of an extremum goes in equal parts to the elements that are it, x's among them, as in PyTorch;
// that of a product is right where elements are 0 (a gradient of that gradient is not: it takes zeros for
// constants).
//
// Shape:  index, i32 or i64, and src of one shape, which is x's but for the dim; y of x's type.
// Dtypes: f32, f64, bf16, f16, i32, i64.
// Layout: where the dim of x is split, each rank makes its range; where that of index and src is, the result is
//         Partial of that reduction, and the first piece takes x into it.
// Errors: InvalidArgument from inference for other types or another reduction; from the kernel, naming the
//         first index outside [0, x's extent) and its global position.
extern const Op<ScatterReduceAttributes> kScatterReduce;

}  // namespace weft

#endif  // WEFT_OPS_INDEXING_SCATTER_REDUCE_H_
