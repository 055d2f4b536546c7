#ifndef WEFT_RUNTIME_TENSOR_CONVERT_H_
#define WEFT_RUNTIME_TENSOR_CONVERT_H_

#include <limits>
#include <type_traits>

#include "runtime/base/dtype.h"

namespace weft {

// True for the C++ types of f32, f64, bf16 and f16.
template <class T>
inline constexpr bool kIsFloatingType = IsFloating(kDTypeOf<T>);

// One element of a dtype as another, the same on every machine. To a float: rounds to nearest (f64 and
// integers reach bf16 and f16 by way of float). Float to integer: truncates toward zero, saturates, NaN gives
// 0. Integer to integer: modulo 2^bits. To bool: is it non-zero; NaN is. CUDA kernels call it too.
template <class To, class From>
constexpr To ConvertElement(From value) {
  constexpr bool kFromHalf = std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>;
  constexpr bool kToHalf = std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>;
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kFromHalf) {
    return ConvertElement<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (kToHalf) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // The casts below are undefined outside To's range. Its bounds as a From: exact, but for max, which
    // rounds up to one more; hence >=.
    constexpr From kMin = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kMax = static_cast<From>(std::numeric_limits<To>::max());
    if (value >= kMax) return std::numeric_limits<To>::max();
    if (value <= kMin) return std::numeric_limits<To>::min();
    return value == value ? static_cast<To>(value) : To(0);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_CONVERT_H_
