#ifndef WEFT_OPS_CUDA_ATTENTION_TENSOR_CORE_H_
#define WEFT_OPS_CUDA_ATTENTION_TENSOR_CORE_H_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "runtime/base/float16.h"

namespace weft {

// The instructions of a warp that products on tensor cores are made of, for T of bf16 and f16. All 32 lanes
// call them together.
//
// A product is d [16, 8] += a [16, 16] b [16, 8], its operands spread over the lanes. With g = lane / 4 and
// c = lane % 4, a lane holds
//
//   a   4 pairs of neighbours in a row     (g, 2c)  (g + 8, 2c)  (g, 2c + 8)  (g + 8, 2c + 8)
//   b   2 pairs of neighbours in a column  (2c, g)  (2c + 8, g)
//   d   4 sums                             (g, 2c)  (g, 2c + 1)  (g + 8, 2c)  (g + 8, 2c + 1)
//
// so sums of two neighbouring products, rounded and paired, are an operand a: that is how probabilities go
// from one product to the next without leaving registers. A pair is one 32-bit word, the first number in its
// low half.
//
// Source: PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type" and "ldmatrix".

#ifdef __CUDACC__

template <class T>
__device__ inline void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four matrices of 8 rows of 16 bytes in shared memory: lane 8 m + r says where row r of matrix m lies, and
// gets of each matrix the pair (g, 2c).
template <class T>
__device__ inline void LoadMatrices(const T* row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The same of the transposed matrices: the numbers (2c, g) and (2c + 1, g) of each.
template <class T>
__device__ inline void LoadTransposedMatrices(const T* row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// Two numbers rounded to T.
template <class T>
__device__ inline uint32_t PackPair(float first, float second) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

// 2^x by the quick instruction: a relative error of some 2e-7. 2^-inf is 0.
__device__ inline float QuickExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Begins to copy kBytes, 4 or 16 and so aligned, from global to shared memory, or zeros if not `valid`. The
// thread sees them after WaitForCopies, others after a barrier beyond that.
template <int kBytes>
__device__ inline void CopyAsync(void* to, const void* from, bool valid) {
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int num_bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(from)), "r"(num_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(from)), "r"(num_bytes)
                 : "memory");
  }
}

// Waits for all copies that the thread has begun.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#else

template <class T>
void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  constexpr bool kIsBFloat16 = std::is_same_v<T, BFloat16>;
  ::cuda_emulator::MultiplyAccumulate(
      kIsBFloat16 ? ::cuda_emulator::HalfType::kBF16 : ::cuda_emulator::HalfType::kF16, d, a, b);
}
template <class T>
void LoadMatrices(const T* row, uint32_t (&matrices)[4]) {
  ::cuda_emulator::LoadMatrices(/*transposed=*/false, row, matrices);
}
template <class T>
void LoadTransposedMatrices(const T* row, uint32_t (&matrices)[4]) {
  ::cuda_emulator::LoadMatrices(/*transposed=*/true, row, matrices);
}
template <class T>
uint32_t PackPair(float first, float second) {
  return T(first).bits() | static_cast<uint32_t>(T(second).bits()) << 16;
}
inline float QuickExp2(float x) { return exp2f(x); }
template <int kBytes>
void CopyAsync(void* to, const void* from, bool valid) {
  ::cuda_emulator::CopyAsync(to, valid ? from : nullptr, kBytes);
}
inline void WaitForCopies() { ::cuda_emulator::WaitAsync(); }

#endif

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_TENSOR_CORE_H_
