#ifndef WEFT_DTENSOR_FUNCTIONS_INDEXING_H_
#define WEFT_DTENSOR_FUNCTIONS_INDEXING_H_

#include "dtensor/dtensor.h"

// Elements by index, i32 or i64, along one dim (negative: from the end). What the index may say, and what it
// may not, stands in ops/indexing/index_select.h and ops/indexing/gather.h.
//
// Layout: where x is split along the dim, it stays so: the owner of an element gives it, the others zero, and
//         the result is Partial(sum); what is added to x is made by each rank for the range that it holds.
namespace weft {

// y[..., j, ...] = x[..., index[j], ...]; index [m].
DTensor IndexSelect(const DTensor& x, int dim, const DTensor& index);
// x with src[..., j, ...] added at index[j]; of an index listed twice, both are.
DTensor IndexAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& src);
// x with src[..., j, ...] put at index[j].
// Errors: InvalidArgument for an index listed twice.
DTensor IndexCopy(const DTensor& x, int dim, const DTensor& index, const DTensor& src);

// y[o, j, k] = x[o, index[o, j, k], k], of index's shape; in the other dims, index may be shorter than x.
DTensor Gather(const DTensor& x, int dim, const DTensor& index);
// x with src[o, j, k] added at [o, index[o, j, k], k], in the order of j: the same bits in every run. In the
// other dims index may be shorter than x, and in all of them shorter than src.
DTensor ScatterAdd(const DTensor& x, int dim, const DTensor& index, const DTensor& src);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_INDEXING_H_
