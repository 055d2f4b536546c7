#ifndef WEFT_OPS_CUDA_BLOCKS_ROUNDED_H_
#define WEFT_OPS_CUDA_BLOCKS_ROUNDED_H_

#include <cuda_runtime.h>

#include <cmath>

namespace weft {

// Products and sums that are each rounded by itself. nvcc joins a * b + c to one fused multiply-add wherever
// it likes; where bits must be those of the CPU, or the same in every kernel, these forbid it.
#ifdef __CUDA_ARCH__
__host__ __device__ inline float MulRounded(float a, float b) { return __fmul_rn(a, b); }
__host__ __device__ inline float AddRounded(float a, float b) { return __fadd_rn(a, b); }
__host__ __device__ inline double MulRounded(double a, double b) { return __dmul_rn(a, b); }
__host__ __device__ inline double AddRounded(double a, double b) { return __dadd_rn(a, b); }
#else
// Host code is compiled with -ffp-contract=off.
__host__ __device__ inline float MulRounded(float a, float b) { return a * b; }
__host__ __device__ inline float AddRounded(float a, float b) { return a + b; }
__host__ __device__ inline double MulRounded(double a, double b) { return a * b; }
__host__ __device__ inline double AddRounded(double a, double b) { return a + b; }
#endif

template <class C>
__host__ __device__ C SubRounded(C a, C b) {
  return AddRounded(a, -b);
}

// For NormalQuantile.
struct RoundedMath {
  __host__ __device__ static double Mul(double a, double b) { return MulRounded(a, b); }
  __host__ __device__ static double Add(double a, double b) { return AddRounded(a, b); }
  __host__ __device__ static double Sqrt(double a) { return std::sqrt(a); }
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_ROUNDED_H_
