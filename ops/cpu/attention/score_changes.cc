#include "ops/cpu/attention/score_changes.h"

#include <cmath>
#include <limits>

#include "runtime/base/philox.h"

namespace weft {
namespace {

template <class M, class T>
bool AddMask(const M* mask, int64_t stride, int64_t n, T* scores) {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  bool seen = false;
  for (int64_t j = 0; j < n; ++j) {
    if constexpr (std::is_same_v<M, bool>) {
      seen |= mask[j * stride];
      if (!mask[j * stride]) scores[j] = kHidden;
    } else {
      const T value = static_cast<T>(mask[j * stride]);
      seen |= value != kHidden;
      scores[j] += value;
    }
  }
  return seen;
}

}  // namespace

ScoreChanges::ScoreChanges(const AttentionExtents& extents, const Tensor& mask, const ShardBox& q_box,
                           const DropoutScalars& dropout)
    : n_(extents), mask_(mask), dropout_(dropout) {
  WEFT_REQUIRE(dropout.rate >= 0 && dropout.rate < 1, "masked_attention: expected a rate in [0, 1), got ",
               dropout.rate);
  // Uniform >= rate, as integers: the uniform is the top 24 bits of the word.
  threshold_ = static_cast<uint32_t>(std::ceil(dropout.rate * 0x1p24));
  // A stride of 0 repeats an extent of 1, so a score's own indices find its element of the mask.
  const auto stride = [&](int dim) { return mask.shape()[dim] == 1 ? 0 : mask.strides()[dim]; };
  const bool split = mask.ndim() == 5;
  mask_b_ = stride(0);
  mask_g_ = split ? stride(2) : stride(1);
  mask_h_ = split ? stride(1) : stride(1) * extents.g;
  mask_s_ = stride(split ? 3 : 2);
  mask_t_ = stride(split ? 4 : 3);
  batch_ = dropout.batch_offset + q_box.offset[0];
  global_groups_ = split ? q_box.global_shape[3] : extents.g;
  global_heads_ = split ? q_box.global_shape[2] * global_groups_ : q_box.global_shape[2];
  head_ = split ? q_box.offset[2] : q_box.offset[2] / std::max<int64_t>(1, extents.g);
  group_ = split ? q_box.offset[3] : 0;
}

template <class T>
bool ScoreChanges::Mask(const HeadIndex& head, int64_t query, int64_t key, int64_t n, T* scores) const {
  const int64_t at = MaskOffset(head, query, key);
  switch (mask_.dtype()) {
    case DType::kBool:
      return AddMask(mask_.data<bool>() + at, mask_t_, n, scores);
    case DType::kBF16:
      return AddMask(mask_.data<BFloat16>() + at, mask_t_, n, scores);
    case DType::kF16:
      return AddMask(mask_.data<Float16>() + at, mask_t_, n, scores);
    case DType::kF64:
      return AddMask(mask_.data<double>() + at, mask_t_, n, scores);
    default:
      return AddMask(mask_.data<float>() + at, mask_t_, n, scores);
  }
}

// The index counts global heads and batch elements, so a rank that holds some of them draws what the whole
// would. A block of Philox makes four words, which neighbouring keys use up.
template <class T>
void ScoreChanges::Drop(const HeadIndex& head, int64_t query, int64_t key, int64_t n, T* row) const {
  const int64_t index = (head_ + head.h) * global_groups_ + group_ + head.g;
  const int64_t first = (((batch_ + head.b) * global_heads_ + index) * n_.s + query) * n_.t + key;
  const T scale = static_cast<T>(1 / (1 - dropout_.rate));
  for (int64_t j = 0; j < n;) {
    const uint64_t element = static_cast<uint64_t>(first + j);
    const PhiloxWords words = RandomWords(dropout_.key, element / 4);
    for (uint64_t lane = element % 4; lane < 4 && j < n; ++lane, ++j) {
      row[j] = (words[lane] >> 8) >= threshold_ ? row[j] * scale : T(0);
    }
  }
}

template bool ScoreChanges::Mask(const HeadIndex&, int64_t, int64_t, int64_t, float*) const;
template bool ScoreChanges::Mask(const HeadIndex&, int64_t, int64_t, int64_t, double*) const;
template void ScoreChanges::Drop(const HeadIndex&, int64_t, int64_t, int64_t, float*) const;
template void ScoreChanges::Drop(const HeadIndex&, int64_t, int64_t, int64_t, double*) const;

}  // namespace weft
