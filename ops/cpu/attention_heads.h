#ifndef WEFT_OPS_CPU_ATTENTION_HEADS_H_
#define WEFT_OPS_CPU_ATTENTION_HEADS_H_

#include <algorithm>
#include <cstdint>

#include "ops/attention.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/workspace.h"
#include "ops/kernel_call.h"

namespace weft {

// What attention and its gradient share: extents of the local tensors, how blocks of queries meet blocks of
// keys, and the strided tensors seen as one matrix a head.

struct AttentionExtents {
  int64_t b = 0;  // batch
  int64_t s = 0;  // queries
  int64_t t = 0;  // keys
  int64_t h = 0;  // key heads
  int64_t g = 0;  // query heads a key head
  int64_t e = 0;  // elements of a head

  // Of local q and k, as kAttention describes them.
  static AttentionExtents Of(const Tensor& q, const Tensor& k);
};

// A head of queries: batch element, key head, query head of it.
struct HeadIndex {
  int64_t b = 0;
  int64_t h = 0;
  int64_t g = 0;
};

// q, k, v or a tensor like them, with contiguous elements: a matrix [s or t, e] a head. A view.
template <class T>
class HeadMatrices {
 public:
  // `extents` tell how dim 2 of a tensor with merged heads falls apart.
  HeadMatrices(const Tensor& tensor, const AttentionExtents& extents)
      : data_(tensor.data<T>()),
        b_(tensor.strides()[0]),
        row_(tensor.shape()[1] == 1 ? extents.e : tensor.strides()[1]) {
    const bool split = tensor.ndim() == 5;
    const int64_t last = tensor.strides()[split ? 3 : 2];
    const bool has_groups = split || tensor.shape()[2] != extents.h;
    g_ = has_groups ? last : 0;
    h_ = split ? tensor.strides()[2] : has_groups ? last * extents.g : last;
  }

  T* Head(const HeadIndex& head, int64_t row = 0) const {
    return data_ + head.b * b_ + head.h * h_ + head.g * g_ + row * row_;
  }
  GemmMatrix<T> Matrix(const HeadIndex& head, int64_t row) const { return {Head(head, row), row_}; }
  GemmMatrix<T> Transposed(const HeadIndex& head, int64_t row) const { return {Head(head, row), row_, true}; }
  int64_t row_stride() const { return row_; }

 private:
  T* data_;
  int64_t b_;
  int64_t row_;
  int64_t h_;
  int64_t g_;
};

// Blocks of scores that are in memory at once: 128 KiB in f32, so that they and their keys stay in L2. Of 64,
// 128 and 256 queries by 256, 512 and 1024 keys, measured: longer blocks of queries compute more that the
// causal mask discards.
inline constexpr int64_t kQueryBlock = 64;
inline constexpr int64_t kKeyBlock = 512;

// Which keys the queries of a block see.
struct AttentionMask {
  bool causal = false;
  int64_t shift = 0;  // query i sees keys up to i + shift: t - s

  // Where query `query` stops seeing the block of keys [key, key + cols): ScoreBlock::visible, below 0 if the
  // block begins later still.
  int64_t Visible(int64_t query, int64_t key, int64_t cols) const {
    return causal ? std::min(query + shift + 1 - key, cols) : cols;
  }
  // Keys that any query before `query_end` sees.
  int64_t KeysBefore(int64_t query_end, int64_t t) const {
    return causal ? std::min(t, query_end + shift) : t;
  }
};

// `tensor` if its elements lie as HeadMatrices and a product need them, else a row-major copy; in `dtype`.
Tensor AsHeads(KernelContext& context, const Tensor& tensor, DType dtype);

// The dtype that attention computes in: f64 for f64, else f32.
DType AttentionDType(DType dtype);

}  // namespace weft

#endif  // WEFT_OPS_CPU_ATTENTION_HEADS_H_
