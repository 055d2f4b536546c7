// Running sums and products along a dim.

#ifndef WEFT_OPS_REDUCE_SCAN_H_
#define WEFT_OPS_REDUCE_SCAN_H_

#include "ops/op/op.h"

namespace weft {

struct ScanAttributes {
  int dim = 0;
  bool reverse = false;  // from the end

  bool operator==(const ScanAttributes&) const = default;
};

// y_i = x_0 + ... + x_i along a dim; in reverse, x_i + ... + x_(n-1), which is its gradient.
//
// Shape:  y of x's type: floating (summed in double, rounded once an element), i32 and i64, which wrap
//         (PyTorch's cumsum of i32 is i64).
// Layout: a split dim is decomposed: the total of each piece travels, one number per row and piece; then
//         every rank scans its piece from where the pieces before it end.
// Errors: InvalidArgument for another dtype or a dim outside x.
extern const Op<ScanAttributes> kCumSum;

// The steps of the decomposition. x -> its sum along the dim, which stays with extent 1: f64 for floating types,
// else x's.
extern const Op<ScanAttributes> kPieceTotal;
// totals -> what stands before each of them (in reverse: after), 0 for the first. The dim is gathered.
extern const Op<ScanAttributes> kPieceOffsets;
// x offset -> offset + cumsum of x; offset as kPieceTotal makes it.
extern const Op<ScanAttributes> kCumSumFrom;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_SCAN_H_
