#ifndef WEFT_OPS_DECLARE_REDUCED_DIMS_H_
#define WEFT_OPS_DECLARE_REDUCED_DIMS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What ops that take numbers over a set of dims have in common: sums and extrema, variance, norms,
// log-sum-exp.

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
};

constexpr bool HasDim(DimMask mask, int dim) { return (mask >> dim & 1) != 0; }

// One factor: "f2".
std::string FactorName(int dim);
// The dims of a value in a rule: "f0 f1"; "()" for a scalar.
std::string DimsText(const std::vector<std::string>& factors);
// The factors of an operand, f0, f1, ... by dim; those of `whole` dims must not be split: "f0 f1!"; "()" for
// a scalar.
std::string AllFactors(int ndim, DimMask whole = 0);
// The factors of one number for every set of reduced elements: "f0", "f0 1" with keepdims.
std::string KeptFactors(int ndim, const ReduceAttributes& attributes);

// Errors: InvalidArgument that names the op if x is neither floating nor, unless `floating`, i32 or i64.
void RequireNumeric(absl::string_view op, const TensorType& x, bool floating);
// The type of such a number, of the operand's dtype.
// Errors: InvalidArgument that names the op if a dim lies outside the operand.
TensorType ReducedType(absl::string_view op, const TensorType& x, const ReduceAttributes& attributes);
// The number of elements that make one number.
int64_t ReducedCount(const Shape& shape, DimMask dims);

}  // namespace weft

#endif  // WEFT_OPS_DECLARE_REDUCED_DIMS_H_
