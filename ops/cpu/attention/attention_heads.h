#ifndef WEFT_OPS_CPU_ATTENTION_ATTENTION_HEADS_H_
#define WEFT_OPS_CPU_ATTENTION_ATTENTION_HEADS_H_

#include <algorithm>
#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/cpu/attention/block_product.h"
#include "ops/cpu/attention/head_rows.h"
#include "ops/op/kernel_call.h"

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

  int64_t key_heads() const { return b * h; }
  int64_t heads() const { return b * h * g; }
  int64_t padded_e() const { return RoundUpToLanes(e); }
};

// A head of queries: batch element, key head, query head of it.
struct HeadIndex {
  int64_t b = 0;
  int64_t h = 0;
  int64_t g = 0;

  // The `index`th of extents.heads(), and the first head of the `index`th of extents.key_heads().
  static HeadIndex Query(const AttentionExtents& n, int64_t index) {
    return {index / (n.h * n.g), index / n.g % n.h, index % n.g};
  }
  static HeadIndex Key(const AttentionExtents& n, int64_t index) { return {index / n.h, index % n.h, 0}; }
};

// q, k, v or a tensor like them, of any floating dtype, with contiguous elements: rows [s or t, e] a head. A
// view.
class HeadTensor {
 public:
  // `extents` tell how dim 2 of a tensor with merged heads falls apart.
  HeadTensor(const Tensor& tensor, const AttentionExtents& extents);

  HeadRows Rows(const HeadIndex& head, int64_t row) const {
    const int64_t element = head.b * b_ + head.h * h_ + head.g * g_ + row * row_;
    return {data_ + element * item_size_, dtype_, row_};
  }

 private:
  std::byte* data_;
  DType dtype_;
  int64_t item_size_;
  int64_t b_, row_, h_, g_;  // strides
};

// Queries whose scores are in memory at once. Of 48, 64 and 96, with blocks of 128, 256 and 512 keys,
// measured: all within the noise of 5%; longer ones leave the first cache, and shorter ones read keys more
// often.
inline constexpr int64_t kQueryBlock = 64;

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
  // The first query that sees key `key`.
  int64_t FirstQuery(int64_t key) const { return causal ? std::max<int64_t>(0, key - shift) : 0; }
};

// `tensor` if its elements lie as HeadTensor needs them, else a row-major copy.
Tensor AsHeads(KernelContext& context, const Tensor& tensor);

// Hands out pieces of a workspace, each at a multiple of kBlockLanes. With null, only counts.
template <class T>
class WorkspaceCarver {
 public:
  explicit WorkspaceCarver(T* workspace) : workspace_(workspace) {}
  T* Take(int64_t elements) {
    T* const piece = workspace_ == nullptr ? nullptr : workspace_ + used_;
    used_ += RoundUpToLanes(elements);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  T* workspace_;
  int64_t used_ = 0;
};

}  // namespace weft

#endif  // WEFT_OPS_CPU_ATTENTION_ATTENTION_HEADS_H_
