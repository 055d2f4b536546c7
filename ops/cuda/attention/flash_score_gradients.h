#ifndef WEFT_OPS_CUDA_ATTENTION_FLASH_SCORE_GRADIENTS_H_
#define WEFT_OPS_CUDA_ATTENTION_FLASH_SCORE_GRADIENTS_H_

#include <cuda_runtime.h>

#include <limits>

#include "ops/cuda/attention/attention_heads.h"
#include "ops/cuda/attention/flash_tiles.h"
#include "ops/cuda/attention/tensor_core.h"

namespace weft {

// What the gradients of keys and of queries begin with: a tile of probabilities, computed again from scores
// and lse, and of the gradients of scores.

// One head's. kChanged: by CudaScoreChanges.
template <class T, bool kChanged>
struct FlashScoreGradients {
  const CudaAttention& n;
  const CudaScoreChanges& changes;
  const FlashExtents& extents;
  CudaHead head;

  // `p`, the product q k, becomes the probability that multiplied v, and `ds`, the product dy v, the gradient
  // of scale q k + mask: 0 where the query does not see the key. kPartial: it may not.
  template <bool kPartial>
  __device__ void Step(int query, int key, float lse, float delta, float& p, float& ds) const {
    constexpr float kLog2E = 1.44269504f;
    const float scale = static_cast<float>(n.scale) * kLog2E;
    bool sees = !kPartial || (query < extents.s && key < extents.SeenBy(query));
    float score = p * scale;
    float factor = 1;
    if constexpr (kChanged) {
      float added = 0;
      if (changes.has_mask) {
        // A mask may leave a query without keys.
        sees = sees && lse != -std::numeric_limits<float>::infinity();
        if (sees) sees = changes.Mask<T>(head, query, key, added);
      }
      score += added * kLog2E;
      if (changes.drops && sees) factor = changes.Factor<float>(n, head, query, key);
    }
    const float probability = QuickExp2(score - lse * kLog2E);
    ds = probability * (ds * factor - delta);
    p = probability * factor;
    if (!sees) {
      p = 0;
      ds = 0;
    }
  }

  // The same of a warp's products, whose rows are queries from `query` or, with kRowsAreKeys, keys from
  // `key`. lse(i, j, x) and delta(i, j, x) are those of number x of piece (i, j). `partial`: some query may
  // not see some key.
  template <bool kRowsAreKeys, int kM, int kPieces, class Lse, class Delta>
  __device__ void Tile(int query, int key, bool partial, const Lse& lse, const Delta& delta,
                       float (&p)[kM][kPieces][4], float (&ds)[kM][kPieces][4]) const {
    if (kChanged || partial) {
      Steps<true, kRowsAreKeys>(query, key, lse, delta, p, ds);
    } else {
      Steps<false, kRowsAreKeys>(query, key, lse, delta, p, ds);
    }
  }

 private:
  template <bool kPartial, bool kRowsAreKeys, int kM, int kPieces, class Lse, class Delta>
  __device__ void Steps(int query, int key, const Lse& lse, const Delta& delta, float (&p)[kM][kPieces][4],
                        float (&ds)[kM][kPieces][4]) const {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const int row = 16 * i + FlashRow(x);
          const int column = 8 * j + FlashColumn(x);
          Step<kPartial>(query + (kRowsAreKeys ? column : row), key + (kRowsAreKeys ? row : column),
                         lse(i, j, x), delta(i, j, x), p[i][j][x], ds[i][j][x]);
        }
      }
    }
  }
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_FLASH_SCORE_GRADIENTS_H_
