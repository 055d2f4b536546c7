#include "tests/ops/tensor_compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace weft {
namespace {

bool Close(double actual, double expected, double tolerance) {
  if (std::isnan(expected) || std::isnan(actual)) return std::isnan(expected) && std::isnan(actual);
  if (std::isinf(expected) || std::isinf(actual)) return actual == expected;
  return std::abs(actual - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

}  // namespace

::testing::AssertionResult AllClose(const Tensor& actual, const Tensor& expected, double tolerance) {
  if (!actual.defined() || !expected.defined()) return ::testing::AssertionFailure() << "an undefined tensor";
  if (actual.dtype() != expected.dtype() || actual.shape() != expected.shape()) {
    return ::testing::AssertionFailure()
           << "got " << actual.TypeString() << ", expected " << expected.TypeString();
  }
  const std::vector<double> a = actual.ToVector<double>();
  const std::vector<double> e = expected.ToVector<double>();
  size_t first = a.size();
  int64_t wrong = 0;
  for (size_t i = a.size(); i-- > 0;) {
    if (Close(a[i], e[i], tolerance)) continue;
    first = i;
    ++wrong;
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << wrong << " of " << a.size() << " elements of " << expected.TypeString()
         << " differ, the first at row-major index " << first << ": got " << a[first] << ", expected "
         << e[first] << ", tolerance " << tolerance;
}

::testing::AssertionResult SameBits(const Tensor& actual, const Tensor& expected) {
  if (actual.dtype() != expected.dtype() || actual.shape() != expected.shape()) {
    return ::testing::AssertionFailure()
           << "got " << actual.TypeString() << ", expected " << expected.TypeString();
  }
  const bool same = VisitDType(actual.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::vector<T> a = actual.ToVector<T>();
    const std::vector<T> e = expected.ToVector<T>();
    for (size_t i = 0; i < a.size(); ++i) {
      const T x = a[i];
      const T y = e[i];
      if (std::memcmp(&x, &y, sizeof(T)) != 0) return false;
    }
    return true;
  });
  if (same) return ::testing::AssertionSuccess();
  ::testing::AssertionResult difference = AllClose(actual, expected, 0);
  if (!difference) return difference;
  return ::testing::AssertionFailure() << "equal values, different bits (signed zeros or nans)";
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
