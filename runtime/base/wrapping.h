#ifndef WEFT_RUNTIME_BASE_WRAPPING_H_
#define WEFT_RUNTIME_BASE_WRAPPING_H_

#include <type_traits>

namespace weft {

// a + b, a - b and a * b of integers, wrapping: computed unsigned, where overflow is defined. CUDA kernels
// call them too.
template <class C>
constexpr C WrappingAdd(C a, C b) {
  using U = std::make_unsigned_t<C>;
  return static_cast<C>(static_cast<U>(a) + static_cast<U>(b));
}
template <class C>
constexpr C WrappingSub(C a, C b) {
  using U = std::make_unsigned_t<C>;
  return static_cast<C>(static_cast<U>(a) - static_cast<U>(b));
}
template <class C>
constexpr C WrappingMul(C a, C b) {
  using U = std::make_unsigned_t<C>;
  return static_cast<C>(static_cast<U>(a) * static_cast<U>(b));
}

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_WRAPPING_H_
