// Functions of one element, for kernels that go over rows.

#ifndef WEFT_OPS_CUDA_BLOCKS_ROW_MATH_H_
#define WEFT_OPS_CUDA_BLOCKS_ROW_MATH_H_

#include <cuda_runtime.h>

#include <limits>
#include <type_traits>

#include "ops/cuda/blocks/row_pack.h"

namespace weft {

template <class C>
inline constexpr C kInfinityOf = std::numeric_limits<C>::infinity();

// e^x for elements of T. For halves by the quick instruction, whose relative error, some 2e-7 + 1e-7 |x|, is
// far below theirs.
template <class T>
__device__ WideOf<T> ExpFor(WideOf<T> x) {
  if constexpr (std::is_same_v<T, double>) {
    return exp(x);
  } else if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

__device__ inline float PowOf(float x, float y) { return powf(x, y); }
__device__ inline double PowOf(double x, double y) { return pow(x, y); }

template <class C>
__device__ bool IsFiniteNumber(C x) {
  return x - x == 0;
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_ROW_MATH_H_
