#ifndef WEFT_OPS_REDUCE_H_
#define WEFT_OPS_REDUCE_H_

#include <cstdint>
#include <initializer_list>

#include "ops/op.h"

namespace weft {

// Reductions over dims, and the broadcasts that are their transposes. No dims reduced: the operand again.
//
// Dtypes: f32, f64, bf16, f16, i32, i64, which results keep (PyTorch's sum and prod of i32 are i64); mean and
// sum_squares the floating ones; extrema also u8 and bool. Sums accumulate short runs in float and those in
// double (integers in 64 bits, wrapping) and round once; products are in double (64 bits) throughout. Errors:
// InvalidArgument naming the op and the type for dims outside the tensor or another dtype.

// A set of dims as bits: bit i is dim i.
using DimMask = uint32_t;

constexpr DimMask AllDims(int ndim) { return (DimMask{1} << ndim) - 1; }
constexpr DimMask DimMaskOf(std::initializer_list<int> dims) {
  DimMask mask = 0;
  for (int dim : dims) mask |= DimMask{1} << dim;
  return mask;
}

struct ReduceAttributes {
  DimMask dims = 0;
  bool keepdims = false;  // reduced dims stay, of extent 1

  bool operator==(const ReduceAttributes&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const ReduceAttributes& attributes) {
    return H::combine(std::move(state), attributes.dims, attributes.keepdims);
  }
};

extern const Op<ReduceAttributes> kSum;
// The sum times 1 / (number of elements reduced, in the global tensor).
extern const Op<ReduceAttributes> kMean;
// NaN wins. The gradient goes to the elements that equal the extremum, in equal parts.
// Of bools they are "any" and "all", false and true where there is none.
// Errors: InvalidArgument where a reduced dim is empty, but for bools.
extern const Op<ReduceAttributes> kReduceMax;
extern const Op<ReduceAttributes> kReduceMin;
// 1 where there is no element. Splitting a reduced dim gives Partial(product). The gradient is made of
// products of the other elements (kCofactor), not of y / x: right where elements are 0, and one total a piece
// travels for each split dim.
extern const Op<ReduceAttributes> kProd;

// The sum of squares of all elements, a scalar: f64 for f64, else f32.
extern const Op<> kSumSquares;

struct ShapeAttributes {
  Shape shape;

  bool operator==(const ShapeAttributes&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const ShapeAttributes& attributes) {
    return H::combine(std::move(state), attributes.shape);
  }
};

// The transpose of broadcasting: sums x to `shape`, which x's shape is a broadcast of, over its leading dims
// and those of extent 1 in `shape`.
extern const Op<ShapeAttributes> kSumTo;

struct BroadcastAttributes {
  Shape shape;               // of the output, global
  DimMask missing_dims = 0;  // dims of `shape` that the operand does not have; its others are equal or 1

  bool operator==(const BroadcastAttributes&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const BroadcastAttributes& attributes) {
    return H::combine(std::move(state), attributes.shape, attributes.missing_dims);
  }
};

// Repeats x along the dims that it lacks and those where its extent is 1: the gradient of a sum, without
// first giving it the lost dims back.
extern const Op<BroadcastAttributes> kBroadcastTo;

// 1 where x equals y, the reduction of x by the same attributes, else 0.
extern const Op<ReduceAttributes> kExtremumMask;

}  // namespace weft

#endif  // WEFT_OPS_REDUCE_H_
