#ifndef WEFT_DTENSOR_FUNCTIONS_INDEXING_H_
#define WEFT_DTENSOR_FUNCTIONS_INDEXING_H_

#include "dtensor/dtensor.h"

// Elements by index, i32 or i64, along one dim (negative: from the end). What the index may say, and what it
// may not, stands in ops/indexing/index_select.h and ops/indexing/gather.h.
//
// Layout: where x is split along the dim, it stays so: the owner of an element gives it, the others zero, and
//         the result is Partial(sum); what is added to x is made by each rank for the range that it holds.
// Cost:   x is not gathered. Along axes that split its dim the index and src are, where they are split there, or the sums that they
//         make are reduced, whichever is cheaper.
// Errors: InvalidArgument for a dim outside x, shapes that do not fit, an index that is not i32 or i64, or, with its place, the
//         first index outside [0, extent): negative ones do not count from the end. On a GPU its element is NaN, or 0 of integers.
namespace weft {

// y[..., j, ...] = x[..., index[j], ...]; index [m].
DTensor IndexSelect(const DTensor& x, int dim, const DTensor& index);
// x with src[..., j, ...] added at index[j]; of an index listed twice, both are.
DTensor IndexAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& src);
// x with src[..., j, ...] put at index[j].
// Errors: InvalidArgument for an index listed twice. On a GPU its elements are NaN, or in integers the sum.
DTensor IndexCopy(const DTensor& x, int dim, const DTensor& index, const DTensor& src);

// y[o, j, k] = x[o, index[o, j, k], k], of index's shape; in the other dims, index may be shorter than x.
DTensor Gather(const DTensor& x, int dim, const DTensor& index);
// x with src[o, j, k] added at [o, index[o, j, k], k], in the order of j: the same bits in every run. In the
// other dims index may be shorter than x, and in all of them shorter than src.
DTensor ScatterAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& src);

// How ScatterReduce puts together what meets at one place.
enum class ScatterReduction { kSum, kProd, kMean, kAmax, kAmin };
struct ScatterReduceOptions {
  ScatterReduction reduction = ScatterReduction::kSum;
  bool include_self = true;  // x's element is one of those; otherwise only where no src goes
};
// x with the src[o, j, k] that go to [o, index[o, j, k], k] reduced into it, as PyTorch's scatter_reduce.
// Shapes as ScatterAdd's. The gradient of an extremum goes in equal parts to the elements that are it; that of a
// product is right where elements are 0. Means of halves are made in f32.
//
// Layout: where x is split along the dim each rank makes the range that it holds. Where index and src are, sums
//         and means leave a Partial(sum), extrema and products a Partial of theirs.
// Errors: InvalidArgument for shapes or indices as ScatterAdd, u8 and bool, and a mean of integers.
DTensor ScatterReduce(const DTensor& x, int dim, const DTensor& index, const DTensor& src,
                      const ScatterReduceOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_INDEXING_H_
