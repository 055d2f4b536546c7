#include <cuda_runtime.h>

#include "ops/cuda/attention/flash_attention.h"
#include "ops/cuda/attention/flash_key_walk.h"
#include "ops/cuda/attention/flash_order.h"
#include "ops/cuda/attention/flash_score_gradients.h"
#include "ops/cuda/attention/flash_tiles.h"
#include "ops/cuda/blocks/dynamic_shared.h"

// The gradient of queries: a block owns a tile of queries of one head and walks over the keys that they see.

namespace weft {
namespace {

// q and dy stay both, so a row takes twice the shared memory that forward's takes: 54 KiB a block with
// kE = 64, and 68 with kE = 128 and kM = 1. kM = 2 would make it 102 there, and an A100 has no room for two
// such blocks.
template <int kE, bool kChanged>
struct QueryGradTiles {
  static constexpr int kM = kE == 64 && !kChanged ? 2 : 1;
  static constexpr int kRows = 16 * kM * kFlashWarps;  // queries
  static constexpr int kKeys = 32;
  static constexpr int kElements = (2 * kRows + 4 * kKeys) * kFlashStride<kE>;
};

// The lse and delta of the warp's rows that a lane has numbers of.
// Queries are rows here, two per piece and lane: few enough for registers, and read once before the walk.
template <int kM>
struct RowStatistics {
  float lse[kM][2];
  float delta[kM][2];

  __device__ RowStatistics(const float* all_lse, const float* all_delta, int own, int s) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = own + 16 * i + FlashRow(2 * half);
        lse[i][half] = query < s ? all_lse[query] : 0.0f;
        delta[i][half] = query < s ? all_delta[query] : 0.0f;
      }
    }
  }
};

template <class T, int kE, bool kChanged>
__global__ void __launch_bounds__(kFlashThreads, 2)
    FlashQueryGradKernel(CudaAttention n, CudaScoreChanges changes, FlashGradOperands<T> operands,
                         FlashOrder order) {
  using Tiles = QueryGradTiles<kE, kChanged>;
  constexpr int kM = Tiles::kM;
  constexpr int kKeys = Tiles::kKeys;
  T* const q = DynamicShared<T>();
  T* const dy = q + Tiles::kRows * kFlashStride<kE>;
  const FlashExtents extents(n);
  const FlashQueries<Tiles::kRows, kM> queries(n, extents, order);
  const CudaHead& head = queries.head;
  const int num_tiles = (queries.seen + kKeys - 1) / kKeys;
  const FlashKeyWalk<T, kE, kKeys> walk = {operands.k.Rows(head), operands.v.Rows(head), extents,
                                           dy + Tiles::kRows * kFlashStride<kE>};
  LoadFlashTile<T, kE, Tiles::kRows>(operands.q.Rows(head), queries.first, extents.s, extents.e, q);
  LoadFlashTile<T, kE, Tiles::kRows>(operands.dy.Rows(head), queries.first, extents.s, extents.e, dy);
  // Without a condition: where the kernel is launched there are keys, and a causal tile of queries sees some.
  walk.Load(0);

  T* const own_q = q + queries.template Offset<kE>();
  const T* const own_dy = dy + queries.template Offset<kE>();
  const RowStatistics<kM> rows(operands.lse + head.Index(n) * n.s, operands.delta + head.Index(n) * n.s,
                               queries.own, extents.s);
  const auto lse = [&](int i, int, int x) { return rows.lse[i][x / 2]; };
  const auto delta = [&](int i, int, int x) { return rows.delta[i][x / 2]; };
  const FlashScoreGradients<T, kChanged> gradients = {n, changes, extents, head};
  float sums[kM][kE / 8][4] = {};
  WaitForCopies();
  __syncthreads();
  for (int i = 0; i < num_tiles; ++i) {
    if (i + 1 < num_tiles) walk.Load(i + 1);  // all are done with tile i - 1
    const int key = i * kKeys;
    if (key < queries.seen_by_some) {
      // [queries, keys] = q [queries, e] k^T [e, keys], and dy v^T
      float p[kM][kKeys / 8][4];
      float ds[kM][kKeys / 8][4];
      MultiplyFlashRows<T, kE>(own_q, walk.Keys(i), p);
      MultiplyFlashRows<T, kE>(own_dy, walk.Values(i), ds);
      gradients.template Tile</*kRowsAreKeys=*/false>(queries.own, key, key + kKeys > queries.seen_by_all,
                                                      lse, delta, p, ds);
      // dq [queries, e] += ds [queries, keys] k [keys, e]
      // ds goes from the product that made it to this one in registers, rounded to T: no barrier lies
      // between.
      AddFlashProduct<T, kE>(ds, walk.Keys(i), sums);
    }
    WaitForCopies();
    __syncthreads();
  }
  StoreFlashSums<T, kE, kM>(sums, static_cast<float>(n.scale), queries.own, extents.s, extents.e, own_q,
                            operands.dq.Rows(head));
}

}  // namespace

template <class T>
void LaunchFlashQueryGrad(CudaStreamRef stream, const CudaAttention& n, const CudaScoreChanges& changes,
                          const FlashGradOperands<T>& operands) {
  WithFlashKernel(n.e, changes.has_mask, [&](auto elements, auto is_changed) {
    constexpr int kE = decltype(elements)::value;
    constexpr bool kChanged = decltype(is_changed)::value;
    using Tiles = QueryGradTiles<kE, kChanged>;
    LaunchOverQueries<T, Tiles>(stream, n, changes, operands, FlashQueryGradKernel<T, kE, kChanged>);
  });
}

template void LaunchFlashQueryGrad(CudaStreamRef, const CudaAttention&, const CudaScoreChanges&,
                                   const FlashGradOperands<BFloat16>&);
template void LaunchFlashQueryGrad(CudaStreamRef, const CudaAttention&, const CudaScoreChanges&,
                                   const FlashGradOperands<Float16>&);

}  // namespace weft
