#ifndef WEFT_OPS_REDUCE_REDUCE_H_
#define WEFT_OPS_REDUCE_REDUCE_H_

#include "ops/declare/reduced_dims.h"
#include "ops/elementwise/broadcast.h"
#include "ops/op/op.h"

namespace weft {

// Reductions over dims; sums are in ops/elementwise/broadcast.h. No dims reduced: the operand again.
//
// Dtypes: f32, f64, bf16, f16, i32, i64, which results keep (PyTorch's sum and prod of i32 are i64); mean and
//         sum_squares the floating ones; extrema also u8 and bool. Sums accumulate short runs in float and
//         those in double (integers in 64 bits, wrapping) and round once; products are in double (64 bits)
//         throughout.
// Errors: InvalidArgument naming the op and the type for dims outside the tensor or another dtype.

// The sum times 1 / (number of elements reduced, in the global tensor).
extern const Op<ReduceAttributes> kMean;
// NaN wins. The gradient goes to the elements that equal the extremum, in equal parts.
// Of bools they are "any" and "all", false and true where there is none.
// Errors: InvalidArgument where a reduced dim is empty, but for bools.
extern const Op<ReduceAttributes> kReduceMax;
extern const Op<ReduceAttributes> kReduceMin;
// 1 where there is no element. The gradient is made of products of the other elements (kCofactor), not of
// y / x: right where elements are 0, and one total a piece travels for each split dim. It is computed in f64,
// and rounded once.
//
// Layout: splitting a reduced dim gives Partial(product). Its terms have x's dtype: where the product of a
//         piece leaves the dtype's range, the whole is inf, 0 or NaN, though one rank alone holds it. Cast x to
//         f64 first where that can be.
extern const Op<ReduceAttributes> kProd;

// The sum of squares of all elements, a scalar: f64 for f64, else f32.
extern const Op<> kSumSquares;

// 1 where x equals y, the reduction of x by the same attributes, else 0.
extern const Op<ReduceAttributes> kExtremumMask;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_REDUCE_H_
