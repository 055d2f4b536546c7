#ifndef WEFT_OPS_OP_NUMBER_AS_H_
#define WEFT_OPS_OP_NUMBER_AS_H_

#include <cmath>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/tensor/convert.h"

namespace weft {

// A run-time scalar of an op as an element.
// Errors: InvalidArgument naming the op and the number if C is an integer type and the number is not whole or
//         outside its range.
template <class C>
C NumberAs(absl::string_view op, double number) {
  if constexpr (std::is_integral_v<C>) {
    const C element = ConvertElement<C>(number);
    // 2^63 saturates to a neighbour that is 2^63 again as a double.
    WEFT_REQUIRE(static_cast<double>(element) == number && number < std::ldexp(1.0, 8 * sizeof(C) - 1), op,
                 ": expected a whole number that fits ", DTypeName(kDTypeOf<C>), ", got ", number);
    return element;
  } else {
    return static_cast<C>(number);
  }
}

// A bound of clamp as an element: saturated, since no integer lies beyond.
// Errors: InvalidArgument if it is NaN, or C is an integer type and it is neither whole nor infinite.
template <class C>
C BoundAs(double bound) {
  WEFT_REQUIRE(!std::isnan(bound), "clamp: a bound is NaN");
  WEFT_REQUIRE(!std::is_integral_v<C> || std::isinf(bound) || bound == std::trunc(bound),
               "clamp: expected whole bounds for ", DTypeName(kDTypeOf<C>), ", got ", bound);
  return ConvertElement<C>(bound);
}

}  // namespace weft

#endif  // WEFT_OPS_OP_NUMBER_AS_H_
