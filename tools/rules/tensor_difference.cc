#include "tools/rules/tensor_difference.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

bool Close(double actual, double expected, const Closeness& closeness) {
  if (std::isnan(actual) && std::isinf(expected)) return closeness.may_cancel;
  if (std::isnan(expected) || std::isnan(actual)) return std::isnan(expected) && std::isnan(actual);
  if (std::isinf(expected) || std::isinf(actual)) return actual == expected;
  if (closeness.signed_zeros && actual == 0 && expected == 0)
    return std::signbit(actual) == std::signbit(expected);
  return std::abs(actual - expected) <= closeness.tolerance * std::max(1.0, std::abs(expected));
}

}  // namespace

std::string Difference(absl::Span<const double> actual, absl::Span<const double> expected,
                       const std::string& type, const Closeness& closeness) {
  size_t first = actual.size();
  int64_t wrong = 0;
  for (size_t i = actual.size(); i-- > 0;) {
    if (Close(actual[i], expected[i], closeness)) continue;
    first = i;
    ++wrong;
  }
  if (wrong == 0) return "";
  return absl::StrCat(wrong, " of ", actual.size(), " elements of ", type,
                      " differ, the first at row-major index ", first, ": got ", actual[first], ", expected ",
                      expected[first], ", tolerance ", closeness.tolerance);
}

std::string Difference(const Tensor& actual, const Tensor& expected, const Closeness& closeness) {
  if (!actual.defined() || !expected.defined()) return "an undefined tensor";
  if (actual.dtype() != expected.dtype() || actual.shape() != expected.shape())
    return absl::StrCat("got ", actual.TypeString(), ", expected ", expected.TypeString());
  return Difference(actual.ToVector<double>(), expected.ToVector<double>(), expected.TypeString(), closeness);
}

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-11;
    case DType::kF32:
      return 1e-5;
    case DType::kF16:
      return 1e-2;
    case DType::kBF16:
      return 6e-2;
    default:
      return 0;
  }
}

}  // namespace weft
