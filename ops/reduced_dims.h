#ifndef WEFT_OPS_REDUCED_DIMS_H_
#define WEFT_OPS_REDUCED_DIMS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "ops/reduce.h"
#include "ops/tensor_type.h"

namespace weft {

// What ops that take numbers over a set of dims have in common: sums and extrema, variance, norms,
// log-sum-exp.

constexpr bool HasDim(DimMask mask, int dim) { return (mask >> dim & 1) != 0; }

// The factors of an operand, f0, f1, ... by dim; those of `whole` dims must not be split: "f0 f1!"; "()" for
// a scalar.
std::string AllFactors(int ndim, DimMask whole = 0);
// The factors of one number for every set of reduced elements: "f0", "f0 1" with keepdims.
std::string KeptFactors(int ndim, const ReduceAttributes& attributes);

// The type of such a number, of the operand's dtype.
// Errors: InvalidArgument that names the op if a dim lies outside the operand.
TensorType ReducedType(absl::string_view op, const TensorType& x, const ReduceAttributes& attributes);
// The number of elements that make one number.
int64_t ReducedCount(const Shape& shape, DimMask dims);

}  // namespace weft

#endif  // WEFT_OPS_REDUCED_DIMS_H_
