#ifndef WEFT_OPS_CUDA_ATTENTION_FLASH_ATTENTION_H_
#define WEFT_OPS_CUDA_ATTENTION_FLASH_ATTENTION_H_

#include <cstdint>
#include <type_traits>

#include "ops/cuda/attention/attention_heads.h"
#include "ops/cuda/attention/flash_tiles.h"
#include "runtime/base/error.h"
#include "runtime/base/float16.h"
#include "runtime/device/cuda/stream.h"

namespace weft {

// Attention of bf16 and f16 on tensor cores: the kernels of heads that ServesFlash admits. Products sum in
// f32; probabilities and the gradients of scores are rounded to T before they are multiplied, as in
// FlashAttention-2.
//
// Source: Dao, FlashAttention-2, arXiv 2307.08691.

template <class T>
inline constexpr bool kIsFlashType = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// Whether the kernels below take the call.
// Errors: InvalidArgument for sequences whose rows an int cannot count.
template <class T>
bool ServesFlash(const CudaAttention& n) {
  constexpr int64_t kMostRows = int64_t{1} << 30;
  if (!kIsFlashType<T> || n.e > kMostFlashElements) return false;
  WEFT_REQUIRE(n.s <= kMostRows && n.t <= kMostRows, "attention on cuda: sequences of at most ", kMostRows,
               " rows, got ", n.s, " queries and ", n.t, " keys");
  return true;
}
// The smallest tile that the other kernels need for T.
template <class T>
inline constexpr int kLeastPlainTile = kIsFlashType<T> ? 2 * kMostFlashElements : 64;

template <class T>
struct FlashOperands {
  CudaHeads<const T> q, k, v;
  CudaHeads<T> y;
  float* lse = nullptr;  // [heads, s]
};

template <class T>
struct FlashGradOperands {
  CudaHeads<const T> q, k, v, dy;
  CudaHeads<T> dq, dk, dv;
  const float* lse = nullptr;    // [heads, s]
  const float* delta = nullptr;  // [heads, s], as in AttentionGradOperands
};

// For BFloat16 and Float16. There must be queries, and for the gradients keys.
template <class T>
void LaunchFlashAttention(CudaStreamRef stream, const CudaAttention& n, const CudaScoreChanges& changes,
                          const FlashOperands<T>& operands);
template <class T>
void LaunchFlashKeyGrad(CudaStreamRef stream, const CudaAttention& n, const CudaScoreChanges& changes,
                        const FlashGradOperands<T>& operands);
template <class T>
void LaunchFlashQueryGrad(CudaStreamRef stream, const CudaAttention& n, const CudaScoreChanges& changes,
                          const FlashGradOperands<T>& operands);

// Calls run(kE, kChanged), two integral constants: tiles for heads of `e` elements, and whether scores
// change.
template <class Run>
void WithFlashKernel(int64_t e, bool changed, const Run& run) {
  const auto with_elements = [&](auto elements) {
    if (changed) return run(elements, std::true_type());
    run(elements, std::false_type());
  };
  if (e <= 64) return with_elements(std::integral_constant<int, 64>());
  with_elements(std::integral_constant<int, kMostFlashElements>());
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_FLASH_ATTENTION_H_
