#ifndef WEFT_OPS_REDUCE_CUM_PROD_H_
#define WEFT_OPS_REDUCE_CUM_PROD_H_

#include "ops/op/op.h"
#include "ops/reduce/cofactor.h"

namespace weft {

// y_i = x_0 * ... * x_i along a dim.
//
// Shape:  y of x's type: floating (multiplied in double, rounded once an element), i32 and i64, which wrap
//         (PyTorch's cumprod of i32 is i64).
// Layout: a split dim is decomposed: the product of each piece travels, one number per row and piece; then
//         every rank goes on from what the pieces before it come to. The gradient gathers the dim.
// Errors: InvalidArgument for another dtype or a dim outside x.
extern const Op<DimAttributes> kCumProd;

// The steps of the decomposition, after kPieceProduct (kProd for integers). totals -> what stands before each
// of them, 1 for the first. The dim is gathered.
extern const Op<DimAttributes> kProductOffsets;
// x offset -> offset * cumprod of x; offset of extent 1 along the dim, f64 for floating types, else x's.
extern const Op<DimAttributes> kCumProdFrom;

// x dy -> dx = (x_0 * ... * x_(i-1)) * s_i, where s_i = dy_i + x_(i+1) * s_(i+1): the gradient, in double, one
// pass each way. Nothing is divided, so it is right where elements are 0.
//
// Layout: the dim is whole.
extern const Op<DimAttributes> kCumProdGrad;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_CUM_PROD_H_
