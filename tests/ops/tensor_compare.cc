#include "tests/ops/tensor_compare.h"

#include <cstring>
#include <string>
#include <vector>

namespace weft {
::testing::AssertionResult AllClose(const Tensor& actual, const Tensor& expected, double tolerance) {
  const std::string difference = Difference(actual, expected, {.tolerance = tolerance});
  if (difference.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << difference;
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

}  // namespace weft
