#ifndef WEFT_OPS_CUDA_ATTENTION_ATTENTION_HEADS_H_
#define WEFT_OPS_CUDA_ATTENTION_ATTENTION_HEADS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/attention/masked_attention.h"
#include "ops/cuda/attention/attention_tiles.h"
#include "ops/cuda/creation/philox_words.h"
#include "ops/op/kernel_call.h"
#include "runtime/base/philox_parts.h"
#include "runtime/tensor/copy.h"

namespace weft {

// What the kernels of attention know of a call: extents, where heads lie, and how scores are changed. Plain
// values that kernels take by value.

struct CudaAttention {
  int64_t b = 0;  // batch
  int64_t s = 0;  // queries
  int64_t t = 0;  // keys
  int64_t h = 0;  // key heads
  int64_t g = 0;  // query heads a key head
  int64_t e = 0;  // elements of a head
  bool causal = false;
  double scale = 1;

  // Of local q and k, as kAttention describes them.
  static CudaAttention Of(const Tensor& q, const Tensor& k, const AttentionAttributes& attributes) {
    const Shape& keys = k.shape();
    CudaAttention n;
    n.b = keys[0];
    n.s = q.shape()[1];
    n.t = keys[1];
    n.h = keys[2];
    n.g = q.ndim() == 5 ? q.shape()[3] : n.h > 0 ? q.shape()[2] / n.h : 1;
    n.e = keys[3];
    n.causal = attributes.causal;
    n.scale = AttentionScale(attributes, n.e);
    WEFT_REQUIRE(n.e <= kMostHeadElements, "attention on cuda: heads of at most ", kMostHeadElements,
                 " elements, got k ", k.TypeString());
    return n;
  }

  __host__ __device__ int64_t key_heads() const { return b * h; }
  __host__ __device__ int64_t heads() const { return b * h * g; }
  // Query i sees the keys before SeenBy(i).
  __host__ __device__ int64_t SeenBy(int64_t query) const {
    const int64_t end = causal ? query + (t - s) + 1 : t;
    return end < t ? end : t;
  }
  // The first query that sees key `key`.
  __host__ __device__ int64_t FirstQuery(int64_t key) const {
    return causal && key > t - s ? key - (t - s) : 0;
  }
};

// A head of queries: batch element, key head, query head of it.
struct CudaHead {
  int64_t b = 0;
  int64_t h = 0;
  int64_t g = 0;

  __device__ static CudaHead Query(const CudaAttention& n, int64_t index) {
    return {index / (n.h * n.g), index / n.g % n.h, index % n.g};
  }
  __device__ static CudaHead Key(const CudaAttention& n, int64_t index) {
    return {index / n.h, index % n.h, 0};
  }
  // Its place among all, row-major.
  __device__ int64_t Index(const CudaAttention& n) const { return (b * n.h + h) * n.g + g; }
};

// q, k, v or a tensor like them whose heads' elements are contiguous. A view.
template <class T>
struct CudaHeads {
  T* data = nullptr;
  int64_t b = 0, row = 0, h = 0, g = 0;  // strides
  bool has_vectors = false;

  CudaHeads() = default;
  CudaHeads(const Tensor& tensor, const CudaAttention& n)
      : data(tensor.data<std::remove_const_t<T>>()), b(tensor.strides()[0]), row(tensor.strides()[1]) {
    const bool split = tensor.ndim() == 5;
    const int64_t last = tensor.strides()[split ? 3 : 2];
    const bool has_groups = split || tensor.shape()[2] != n.h;
    g = has_groups ? last : 0;
    h = split ? tensor.strides()[2] : has_groups ? last * n.g : last;
    constexpr int64_t kChunk = 16 / sizeof(T);
    has_vectors = (n.e | b | row | h | g) % kChunk == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  }

  __device__ CudaHeadRows<T> Rows(const CudaHead& head) const {
    return {data + head.b * b + head.h * h + head.g * g, row, has_vectors};
  }
};

// `tensor` if its elements lie as CudaHeads needs them, else a row-major copy.
inline Tensor AsCudaHeads(const Tensor& tensor, const std::shared_ptr<Allocator>& allocator) {
  const int last = tensor.ndim() - 1;
  if (tensor.shape()[last] == 1 || tensor.strides()[last] == 1) return tensor;
  return CloneTensor(tensor, allocator);
}

// What masked attention does to scores and probabilities: a mask, bool or added, and dropout. `has_mask` is
// false for plain attention.
struct CudaScoreChanges {
  bool has_mask = false;
  bool mask_is_bool = false;
  const void* mask = nullptr;                                          // else of q's dtype
  int64_t mask_b = 0, mask_h = 0, mask_g = 0, mask_s = 0, mask_t = 0;  // strides, 0 where it repeats
  bool drops = false;
  PhiloxStream random;
  uint32_t threshold = 0;
  double kept_factor = 1;
  int64_t global_heads = 0, global_groups = 0;
  int64_t batch = 0, head = 0, group = 0;  // of the first local one

  // `q_box` is q's.
  // Errors: InvalidArgument for a rate outside [0, 1).
  static CudaScoreChanges Of(const CudaAttention& n, const Tensor& mask, const ShardBox& q_box,
                             const DropoutScalars& dropout) {
    WEFT_REQUIRE(dropout.rate >= 0 && dropout.rate < 1, "masked_attention: expected a rate in [0, 1), got ",
                 dropout.rate);
    CudaScoreChanges c;
    c.has_mask = true;
    c.mask_is_bool = mask.dtype() == DType::kBool;
    c.mask = mask.data();
    const auto stride = [&](int dim) { return mask.shape()[dim] == 1 ? 0 : mask.strides()[dim]; };
    const bool split = mask.ndim() == 5;
    c.mask_b = stride(0);
    c.mask_g = split ? stride(2) : stride(1);
    c.mask_h = split ? stride(1) : stride(1) * n.g;
    c.mask_s = stride(split ? 3 : 2);
    c.mask_t = stride(split ? 4 : 3);
    c.drops = dropout.rate > 0;
    c.random = StreamParts(dropout.key);
    // Uniform >= rate, as integers: the uniform is the top 24 bits of the word.
    c.threshold = static_cast<uint32_t>(std::ceil(dropout.rate * 0x1p24));
    c.kept_factor = 1 / (1 - dropout.rate);
    c.batch = dropout.batch_offset + q_box.offset[0];
    c.global_groups = split ? q_box.global_shape[3] : n.g;
    c.global_heads = split ? q_box.global_shape[2] * c.global_groups : q_box.global_shape[2];
    c.head = split ? q_box.offset[2] : q_box.offset[2] / std::max<int64_t>(1, n.g);
    c.group = split ? q_box.offset[3] : 0;
    return c;
  }

  __host__ __device__ int64_t MaskOffset(const CudaHead& at, int64_t query, int64_t key) const {
    return at.b * mask_b + at.h * mask_h + at.g * mask_g + query * mask_s + key * mask_t;
  }

  // Adds the mask to a score. False if it hides the key.
  template <class T, class C>
  __device__ bool Mask(const CudaHead& at, int64_t query, int64_t key, C& score) const {
    const int64_t offset = MaskOffset(at, query, key);
    if (mask_is_bool) return static_cast<const bool*>(mask)[offset];
    const C value = static_cast<C>(static_cast<const T*>(mask)[offset]);
    score += value;
    return value != -std::numeric_limits<C>::infinity();
  }

  // The factor of a probability: 0 or 1 / (1 - rate).
  template <class C>
  __device__ C Factor(const CudaAttention& n, const CudaHead& at, int64_t query, int64_t key) const {
    const int64_t index = (head + at.h) * global_groups + group + at.g;
    const uint64_t element =
        static_cast<uint64_t>((((batch + at.b) * global_heads + index) * n.s + query) * n.t + key);
    const uint32_t word = CudaPhiloxWord(random, element);
    return (word >> 8) >= threshold ? static_cast<C>(kept_factor) : C(0);
  }
};

inline __device__ float AttentionExp(float x) { return expf(x); }
inline __device__ double AttentionExp(double x) { return exp(x); }
inline __device__ float AttentionLog(float x) { return logf(x); }
inline __device__ double AttentionLog(double x) { return log(x); }

// Calls run(std::integral_constant<int, kE>()) with the kE of AttentionTile for heads of `e` elements, at
// least kLeast. f64 serves verification only: one size.
template <class T, int kLeast = 64, class Run>
void WithAttentionTile(int64_t e, const Run& run) {
  if constexpr (!std::is_same_v<T, double>) {
    if constexpr (kLeast <= 64) {
      if (e <= 64) return run(std::integral_constant<int, 64>());
    }
    if constexpr (kLeast <= 128) {
      if (e <= 128) return run(std::integral_constant<int, 128>());
    }
  }
  return run(std::integral_constant<int, kMostHeadElements>());
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_ATTENTION_HEADS_H_
