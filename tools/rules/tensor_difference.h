#ifndef WEFT_TOOLS_RULES_TENSOR_DIFFERENCE_H_
#define WEFT_TOOLS_RULES_TENSOR_DIFFERENCE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// How close two tensors must be.
struct Closeness {
  double tolerance = 0;       // |actual - expected| <= tolerance * max(1, |expected|)
  bool signed_zeros = false;  // -0.0 differs from 0.0
  bool may_cancel = false;    // nan may stand where an infinity is expected: inf - inf
};

// What is the matter with `actual`: how many elements differ, and the first of them. Empty if it is close to
// `expected`. nan equals nan, an infinity equals itself. Types must be equal.
std::string Difference(const Tensor& actual, const Tensor& expected, const Closeness& closeness);
// The same for the row-major elements of a tensor that is called `type` in the text.
std::string Difference(absl::Span<const double> actual, absl::Span<const double> expected,
                       const std::string& type, const Closeness& closeness);

// Rounding that a short sum in the dtype may accumulate: 0 for integers.
double Tolerance(DType dtype);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_TENSOR_DIFFERENCE_H_
