#ifndef WEFT_RUNTIME_TENSOR_CUDA_CONVERT_ON_DEVICE_H_
#define WEFT_RUNTIME_TENSOR_CUDA_CONVERT_ON_DEVICE_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "runtime/tensor/convert.h"

namespace weft {

// ConvertElement, between float and halves by the GPU's own instructions. Plain arithmetic takes some ten for each, so that
// kernels of halves wait for rounding and not for memory. The bits are the same, but for those of a NaN.
template <class To, class From>
__device__ To ConvertOnDevice(From value) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, BFloat16>) {
    uint32_t bits;  // of two: the upper one is not wanted
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(value));
    return BFloat16::FromBits(static_cast<uint16_t>(bits));
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Float16>) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return Float16::FromBits(bits);
  } else if constexpr (std::is_same_v<From, Float16> && std::is_same_v<To, float>) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits()));
    return wide;
  } else {
    return ConvertElement<To>(value);
  }
#else
  return ConvertElement<To>(value);
#endif
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_CUDA_CONVERT_ON_DEVICE_H_
