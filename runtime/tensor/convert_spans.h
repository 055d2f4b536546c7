#ifndef WEFT_RUNTIME_TENSOR_CONVERT_SPANS_H_
#define WEFT_RUNTIME_TENSOR_CONVERT_SPANS_H_

#include <cstdint>
#include <type_traits>

#include "runtime/tensor/convert.h"

namespace weft {

// Arrays of n halves as floats and back, compiled for every instruction set level and chosen at run time. The
// same bits as ConvertElement on every machine, NaN and subnormals included. The arrays must not overlap.
void ConvertHalves(const BFloat16* from, float* to, int64_t n);
void ConvertHalves(const Float16* from, float* to, int64_t n);
void ConvertHalves(const float* from, BFloat16* to, int64_t n);
void ConvertHalves(const float* from, Float16* to, int64_t n);

// to[i] = ConvertElement<To>(from[i]): by vectors between halves and floats, else as the compiler has it.
template <class From, class To>
void ConvertSpan(const From* from, To* to, int64_t n) {
  constexpr bool kFromHalf = std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>;
  constexpr bool kToHalf = std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>;
  if constexpr ((kFromHalf && std::is_same_v<To, float>) || (kToHalf && std::is_same_v<From, float>)) {
    ConvertHalves(from, to, n);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = ConvertElement<To>(from[i]);
  }
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_CONVERT_SPANS_H_
