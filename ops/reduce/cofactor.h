#ifndef WEFT_OPS_REDUCE_COFACTOR_H_
#define WEFT_OPS_REDUCE_COFACTOR_H_

#include "ops/op/op.h"

namespace weft {

// One dim of the operand.
struct DimAttributes {
  int dim = 0;

  bool operator==(const DimAttributes&) const = default;
};

// y_i = the product of all x_j along a dim but x_i: the gradient of a product. By products of what stands
// before and after, in double: right where elements are 0 or infinite, where dividing the product by x_i is
// not.
//
// Shape:  x, floating; y of its type.
// Layout: a split dim is decomposed: the product of each piece travels, one f64 a row and piece.
// Errors: InvalidArgument for another dtype or a dim outside x.
extern const Op<DimAttributes> kCofactor;

// The steps of the decomposition. x -> the product along the dim, f64, which stays with extent 1.
extern const Op<DimAttributes> kPieceProduct;
// kCofactor itself, but of a dim that is gathered: of the few totals.
extern const Op<DimAttributes> kTotalsCofactor;
// x others -> others * cofactor of x, others f64 with extent 1 along the dim.
extern const Op<DimAttributes> kPieceCofactor;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_COFACTOR_H_
