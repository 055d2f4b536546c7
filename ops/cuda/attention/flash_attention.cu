#include <cuda_runtime.h>

#include <limits>

#include "ops/cuda/attention/flash_attention.h"
#include "ops/cuda/attention/flash_key_walk.h"
#include "ops/cuda/attention/flash_order.h"
#include "ops/cuda/attention/flash_tiles.h"
#include "ops/cuda/blocks/dynamic_shared.h"

// A block takes a tile of queries of one head and walks over the keys that they see, a tile at a time, with a
// running softmax. While it multiplies one tile, the next one comes. Scores and probabilities are registers
// from the product that makes them to the one that takes them.

namespace weft {
namespace {

// The GPU has an instruction for 2^x, not for e^x. log2(e) is part of the factor of the scores, so that a
// probability costs one multiply-add and one such instruction.
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.69314718f;
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// What fits the 255 registers of a thread and, twice, the shared memory of a processor. A larger kM reads
// shared memory less often.
// A lane holds kM kE / 2 sums and kM kKeys / 2 scores: 64 + 64 with kM = 2 and kE = 64, and 128 + 32 with
// kE = 128, where 64 keys would make it 192. Shared memory is 54 and 68 KiB, twice which an A100 has. Masks
// and dropout want registers for offsets and random words: kM = 1.
template <int kE, bool kChanged>
struct ForwardTiles {
  static constexpr int kM = kChanged ? 1 : 2;
  static constexpr int kRows = 16 * kM * kFlashWarps;  // queries
  static constexpr int kKeys = kE == 64 ? 64 : 32;
  static constexpr int kElements = (kRows + 4 * kKeys) * kFlashStride<kE>;
};

// The maximum or sum over the four lanes that share a row; each gets it.
__device__ float MaxOfQuad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ float SumOfQuad(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// The running softmax of the two rows of each piece that a lane shares with three others. Sums are the lane's
// own until Finish.
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
template <int kM>
struct FlashSoftmax {
  float max[kM][2];
  float sum[kM][2];

  __device__ FlashSoftmax() {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        max[i][half] = kHidden;
        sum[i][half] = 0;
      }
    }
  }

  // Scores, kHidden where a key is not seen, become probabilities 2^(factor (score - new maximum)), and
  // `sums` of before are brought to that maximum. `factor` > 0. kMayHideAll: a row may not have seen a key
  // yet.
  template <bool kMayHideAll, int kPieces, int kSums>
  __device__ void Step(float factor, float (&scores)[kM][kPieces][4], float (&sums)[kM][kSums][4]) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = kHidden;
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          largest = fmaxf(largest, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
        }
        const float before = max[i][half];
        const float now = fmaxf(before, MaxOfQuad(largest));
        max[i][half] = now;
        // Equal maxima are compared, not subtracted: both may be -inf, whose difference is NaN. Without masks
        // the reference needs no such care, since every row sees key 0 (a causal call has no more queries
        // than keys) and has a finite maximum from the first tile on, unless a score is not finite itself.
        const float rescale = before == now ? 1.0f : QuickExp2((before - now) * factor);
        const float reference = kMayHideAll && now == kHidden ? 0.0f : now * factor;
        float added = 0;
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
#pragma unroll
          for (int x = 2 * half; x < 2 * half + 2; ++x) {
            scores[i][j][x] = QuickExp2(scores[i][j][x] * factor - reference);
            added += scores[i][j][x];
          }
        }
        sum[i][half] = sum[i][half] * rescale + added;
#pragma unroll
        for (int j = 0; j < kSums; ++j) {
          sums[i][j][2 * half] *= rescale;
          sums[i][j][2 * half + 1] *= rescale;
        }
      }
    }
  }

  __device__ void Finish() {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[i][half] = SumOfQuad(sum[i][half]);
    }
  }
};

// Calls visit(score, query, key) for the lane's scores of the queries from `query` and the keys from `key`.
template <int kM, int kPieces, class Visit>
__device__ void ForEachScore(int query, int key, float (&scores)[kM][kPieces][4], const Visit& visit) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        visit(scores[i][j][x], query + 16 * i + FlashRow(x), key + 8 * j + FlashColumn(x));
      }
    }
  }
}

// y = sums / sum and lse of the warp's rows from `first` on; `rows` as StoreFlashSums takes them.
template <class T, int kE, int kM>
__device__ void StoreForward(const FlashSoftmax<kM>& softmax, float factor, float (&sums)[kM][kE / 8][4],
                             int first, const FlashExtents& extents, T* rows, const CudaHeadRows<T>& y,
                             float* lse) {
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = softmax.sum[i][half];
      // The division by the sum comes once per row, behind all tiles (FlashAttention-2).
      const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int j = 0; j < kE / 8; ++j) {
        sums[i][j][2 * half] *= inverse;
        sums[i][j][2 * half + 1] *= inverse;
      }
      const int query = first + 16 * i + FlashRow(2 * half);
      // All four lanes of a row have its sum: the first one writes.
      if (FlashColumn(0) != 0 || query >= extents.s) continue;
      lse[query] = sum == 0 ? kHidden : softmax.max[i][half] * factor * kLn2 + logf(sum);
    }
  }
  StoreFlashSums<T, kE, kM>(sums, 1.0f, first, extents.s, extents.e, rows, y);
}

// What the masks do to a tile of scores of the warp's queries. kChanged: by CudaScoreChanges too.
template <class T, bool kChanged>
struct ScoreMasks {
  const CudaAttention& n;
  const CudaScoreChanges& changes;
  const FlashExtents& extents;
  const CudaHead& head;

  // Products become scores, kHidden where a key is not seen. Those that change are scaled before they do, in
  // the units of 2^x. `partial`: some may be hidden.
  template <int kM, int kPieces>
  __device__ void Hide(int own, int key, bool partial, float (&scores)[kM][kPieces][4]) const {
    // `partial` is the same for a whole warp. Tiles that all its queries see whole, most of them in long
    // sequences, skip a comparison per score.
    if constexpr (kChanged) {
      const float scale = static_cast<float>(n.scale) * kLog2E;
      ForEachScore(own, key, scores, [&](float& score, int query, int at) {
        float added = 0;
        bool sees = query < extents.s && at < extents.SeenBy(query);
        if (changes.has_mask && sees) sees = changes.Mask<T>(head, query, at, added);
        score = sees ? score * scale + added * kLog2E : kHidden;
      });
    } else if (partial) {
      ForEachScore(own, key, scores, [&](float& score, int query, int at) {
        if (at >= extents.SeenBy(query)) score = kHidden;
      });
    }
  }

  template <int kM, int kPieces>
  __device__ void Drop(int own, int key, float (&p)[kM][kPieces][4]) const {
    if constexpr (kChanged) {
      if (!changes.drops) return;
      ForEachScore(own, key, p, [&](float& probability, int query, int at) {
        probability *= changes.Factor<float>(n, head, query, at);
      });
    }
  }
};

// Two blocks to a processor: one multiplies while the other waits at a barrier. That leaves a thread
// 65536 / (2 * 128) = 256 of the processor's registers, so the 255 that it can address are no loss.
template <class T, int kE, bool kChanged>
__global__ void __launch_bounds__(kFlashThreads, 2)
    FlashKernel(CudaAttention n, CudaScoreChanges changes, FlashOperands<T> operands, FlashOrder order) {
  using Tiles = ForwardTiles<kE, kChanged>;
  constexpr int kM = Tiles::kM;
  constexpr int kKeys = Tiles::kKeys;
  T* const q = DynamicShared<T>();
  const FlashExtents extents(n);
  const FlashQueries<Tiles::kRows, kM> queries(n, extents, order);
  const CudaHead& head = queries.head;
  const int num_tiles = (queries.seen + kKeys - 1) / kKeys;
  const FlashKeyWalk<T, kE, kKeys> walk = {operands.k.Rows(head), operands.v.Rows(head), extents,
                                           q + Tiles::kRows * kFlashStride<kE>};
  LoadFlashTile<T, kE, Tiles::kRows>(operands.q.Rows(head), queries.first, extents.s, extents.e, q);
  if (num_tiles > 0) walk.Load(0);

  T* const own_q = q + queries.template Offset<kE>();
  const ScoreMasks<T, kChanged> masks = {n, changes, extents, head};
  const float factor = kChanged ? 1.0f : static_cast<float>(n.scale) * kLog2E;
  FlashSoftmax<kM> softmax;
  float sums[kM][kE / 8][4] = {};
  WaitForCopies();
  __syncthreads();
  // Two stages, one barrier per tile: behind it the next tile has come for all threads, and all are done with
  // this one, whose memory the copies after the next take. A third stage would leave an A100 no room for two
  // blocks where kE = 128.
  for (int i = 0; i < num_tiles; ++i) {
    if (i + 1 < num_tiles) walk.Load(i + 1);  // all are done with tile i - 1
    const int key = i * kKeys;
    // A warp that sees nothing of the tile still copies its share of the next and comes to the barrier.
    if (key < queries.seen_by_some) {
      // [queries, keys] = q [queries, e] k^T [e, keys]
      float scores[kM][kKeys / 8][4];
      MultiplyFlashRows<T, kE>(own_q, walk.Keys(i), scores);
      masks.Hide(queries.own, key, /*partial=*/key + kKeys > queries.seen_by_all, scores);
      softmax.template Step</*kMayHideAll=*/kChanged>(factor, scores, sums);
      masks.Drop(queries.own, key, scores);
      // y [queries, e] += p [queries, keys] v [keys, e]
      AddFlashProduct<T, kE>(scores, walk.Values(i), sums);
    }
    WaitForCopies();
    __syncthreads();
  }
  softmax.Finish();
  StoreForward<T, kE, kM>(softmax, factor, sums, queries.own, extents, own_q, operands.y.Rows(head),
                          operands.lse + head.Index(n) * n.s);
}

}  // namespace

template <class T>
void LaunchFlashAttention(CudaStreamRef stream, const CudaAttention& n, const CudaScoreChanges& changes,
                          const FlashOperands<T>& operands) {
  // A factor below 0 would make the maximum a minimum.
  const bool changed = changes.has_mask || n.scale < 0;
  WithFlashKernel(n.e, changed, [&](auto elements, auto is_changed) {
    constexpr int kE = decltype(elements)::value;
    constexpr bool kChanged = decltype(is_changed)::value;
    using Tiles = ForwardTiles<kE, kChanged>;
    LaunchOverQueries<T, Tiles>(stream, n, changes, operands, FlashKernel<T, kE, kChanged>);
  });
}

template void LaunchFlashAttention(CudaStreamRef, const CudaAttention&, const CudaScoreChanges&,
                                   const FlashOperands<BFloat16>&);
template void LaunchFlashAttention(CudaStreamRef, const CudaAttention&, const CudaScoreChanges&,
                                   const FlashOperands<Float16>&);

}  // namespace weft
