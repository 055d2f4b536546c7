#ifndef WEFT_OPS_CPU_ATTENTION_SCORE_CHANGES_H_
#define WEFT_OPS_CPU_ATTENTION_SCORE_CHANGES_H_

#include <cstdint>

#include "ops/cpu/attention/attention_heads.h"
#include "ops/creation/random.h"
#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// What masked attention does to scores and probabilities: a mask that is added, and dropout. Views of local
// tensors; a key and where the piece lies in the whole.
class ScoreChanges {
 public:
  // `q_box` is q's.
  // Errors: InvalidArgument for a rate outside [0, 1).
  ScoreChanges(const AttentionExtents& extents, const Tensor& mask, const ShardBox& q_box,
               const DropoutScalars& dropout);

  // Adds the mask to the scores of one query with the keys [key, key + n); a key that a bool mask hides gets
  // -inf. Returns whether any of them is seen.
  template <class T>
  bool Mask(const HeadIndex& head, int64_t query, int64_t key, int64_t n, T* scores) const;

  bool drops() const { return dropout_.rate > 0; }
  // row[j] *= factor of the probability of key `key` + j: 0 or 1 / (1 - rate).
  template <class T>
  void Drop(const HeadIndex& head, int64_t query, int64_t key, int64_t n, T* row) const;

  // The element of a tensor like the mask that belongs to a score.
  int64_t MaskOffset(const HeadIndex& head, int64_t query, int64_t key) const {
    return head.b * mask_b_ + head.h * mask_h_ + head.g * mask_g_ + query * mask_s_ + key * mask_t_;
  }

 private:
  AttentionExtents n_;
  Tensor mask_;
  int64_t mask_b_, mask_h_, mask_g_, mask_s_, mask_t_;  // strides, 0 where the mask repeats
  DropoutScalars dropout_;
  uint32_t threshold_;
  int64_t global_heads_;
  int64_t global_groups_;
  int64_t batch_, head_, group_;  // of the first local one
};

}  // namespace weft

#endif  // WEFT_OPS_CPU_ATTENTION_SCORE_CHANGES_H_
