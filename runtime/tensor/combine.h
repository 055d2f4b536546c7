// How reductions combine two elements.

#ifndef WEFT_RUNTIME_TENSOR_COMBINE_H_
#define WEFT_RUNTIME_TENSOR_COMBINE_H_

#include <cstdint>
#include <type_traits>

#include "runtime/base/dtype.h"
#include "runtime/base/reduce_op.h"

namespace weft {

namespace internal {
template <class T>
struct ArithmeticOf {
  using type = T;
};
template <>
struct ArithmeticOf<BFloat16> {
  using type = float;
};
template <>
struct ArithmeticOf<Float16> {
  using type = float;
};
template <>
struct ArithmeticOf<int32_t> {
  using type = uint32_t;
};
template <>
struct ArithmeticOf<int64_t> {
  using type = uint64_t;
};
}  // namespace internal

// One element of a reduction, the same on every device: op(total, value). bf16 and f16 combine in float and
// round once; integers wrap; of bools sum and max are "or", product and min "and". NaN wins in min and max.
// kAvg is a sum.
template <ReduceOp kOp, class T>
constexpr T Combine(T total, T value) {
  if constexpr (kOp == ReduceOp::kMin || kOp == ReduceOp::kMax) {
    constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
    using Ordered = std::conditional_t<kIsHalf, float, T>;
    const Ordered a = static_cast<Ordered>(value);
    const Ordered b = static_cast<Ordered>(total);
    // A NaN in `total` stays, since no comparison with it holds.
    const bool wins = kOp == ReduceOp::kMin ? a < b : a > b;
    return wins || a != a ? value : total;
  } else {
    using A = typename internal::ArithmeticOf<T>::type;
    const A a = static_cast<A>(value);
    const A b = static_cast<A>(total);
    return kOp == ReduceOp::kProduct ? static_cast<T>(b * a) : static_cast<T>(b + a);
  }
}

// Calls `function` with the op as a std::integral_constant, kAvg as kSum.
template <class Function>
decltype(auto) VisitReduceOp(ReduceOp op, Function&& function) {
  switch (op) {
    case ReduceOp::kProduct:
      return function(std::integral_constant<ReduceOp, ReduceOp::kProduct>());
    case ReduceOp::kMin:
      return function(std::integral_constant<ReduceOp, ReduceOp::kMin>());
    case ReduceOp::kMax:
      return function(std::integral_constant<ReduceOp, ReduceOp::kMax>());
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      break;
  }
  return function(std::integral_constant<ReduceOp, ReduceOp::kSum>());
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_COMBINE_H_
