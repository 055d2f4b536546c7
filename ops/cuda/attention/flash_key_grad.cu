#include <cuda_runtime.h>

#include "ops/cuda/attention/flash_attention.h"
#include "ops/cuda/attention/flash_order.h"
#include "ops/cuda/attention/flash_score_gradients.h"
#include "ops/cuda/attention/flash_tiles.h"
#include "ops/cuda/blocks/dynamic_shared.h"
#include "runtime/device/cuda/launch.h"

// The gradients of keys and values: a block owns a tile of keys of one head and walks over the queries that
// see them, of all heads that share the keys. Products have keys as rows, so that probabilities lie as the
// left operand that the sums over queries want.

namespace weft {
namespace {

// A lane holds kM kE / 2 sums of dk, as many of dv, and kM kQueries / 2 numbers each of p and ds:
// 64 + 64 + 32 + 32 with kM = 2 and kE = 64. With kE = 128 the sums alone would take 256 registers, so
// kM = 1.
template <int kE, bool kChanged>
struct KeyGradTiles {
  static constexpr int kM = kE == 64 && !kChanged ? 2 : 1;
  static constexpr int kRows = 16 * kM * kFlashWarps;  // keys
  static constexpr int kQueries = 32;
  template <class T>
  static constexpr size_t SharedBytes() {
    return (2 * kRows + 4 * kQueries) * kFlashStride<kE> * sizeof(T) + 4 * kQueries * sizeof(float);
  }
};

// A tile of queries: those from `query` on of the query head g of the block's key head.
struct QueryTile {
  int g = 0;
  int query = 0;
  int stage = 0;  // which of two it is loaded to
};

// The tiles that a block walks over: those of one query head after those of another. A stage is a tile of
// queries and one of dy; lse and delta lie behind both stages.
template <class T, int kE, int kQueries>
struct QueryWalk {
  static constexpr int kTileElements = kQueries * kFlashStride<kE>;
  const CudaAttention& n;
  const FlashExtents& extents;
  const FlashGradOperands<T>& operands;
  const CudaHead& key_head;
  T* stages = nullptr;
  int begin = 0;  // of the first tile of a head

  __device__ QueryTile Next(const QueryTile& tile) const {
    const int query = tile.query + kQueries;
    if (query < extents.s) return {tile.g, query, 1 - tile.stage};
    return {tile.g + 1, begin, 1 - tile.stage};
  }
  __device__ bool Has(const QueryTile& tile) const { return tile.g < static_cast<int>(n.g); }
  __device__ CudaHead Head(const QueryTile& tile) const { return {key_head.b, key_head.h, tile.g}; }

  __device__ T* Queries(const QueryTile& tile) const { return stages + tile.stage * 2 * kTileElements; }
  __device__ T* Dy(const QueryTile& tile) const { return Queries(tile) + kTileElements; }
  // lse, then delta.
  __device__ float* Statistics(const QueryTile& tile) const {
    return reinterpret_cast<float*>(stages + 4 * kTileElements) + tile.stage * 2 * kQueries;
  }

  // Begins to load a tile.
  __device__ void Load(const QueryTile& tile) const {
    const CudaHead head = Head(tile);
    LoadFlashTile<T, kE, kQueries>(operands.q.Rows(head), tile.query, extents.s, extents.e, Queries(tile));
    LoadFlashTile<T, kE, kQueries>(operands.dy.Rows(head), tile.query, extents.s, extents.e, Dy(tile));
    // Copies of 4 bytes: where s is not a multiple of 4, a head's row of lse begins at no multiple of 16. Two
    // warps of the block's four do them, a float per thread.
    const int own = static_cast<int>(threadIdx.x);
    if (own >= 2 * kQueries) return;
    const int row = tile.query + own % kQueries;
    const float* const from = (own < kQueries ? operands.lse : operands.delta) + head.Index(n) * n.s;
    CopyAsync<4>(Statistics(tile) + own, row < extents.s ? from + row : from, row < extents.s);
  }
};

// The first queries that see a warp's 16 kM keys from `own` on.
template <int kM>
struct SeeingQueries {
  int own = 0;
  int some = 0;  // of the keys; as many as there are queries if the warp has no key
  int all = 0;

  __device__ SeeingQueries(int first, const FlashExtents& extents) : own(first + FlashWarp() * 16 * kM) {
    some = own < extents.t ? extents.FirstQuery(own) : extents.s;
    all = extents.FirstQuery(own + 16 * kM - 1);
  }
};

// Every sum has one owner, which meets the queries in ascending order, head by head: no atomics, and bits
// that do not depend on which blocks run together. Queries are columns of its products, of which a lane has
// two in each piece: their statistics stay in shared memory, since registers are short. The factor of the
// scores comes in with the store, once per element of dk; the tiles of k and v are scratch by then, each warp
// passing its sums through the rows that only it has read.
template <class T, int kE, bool kChanged>
__global__ void __launch_bounds__(kFlashThreads, 2)
    FlashKeyGradKernel(CudaAttention n, CudaScoreChanges changes, FlashGradOperands<T> operands,
                       FlashOrder order) {
  using Tiles = KeyGradTiles<kE, kChanged>;
  constexpr int kM = Tiles::kM;
  constexpr int kQueries = Tiles::kQueries;
  T* const k = DynamicShared<T>();
  T* const v = k + Tiles::kRows * kFlashStride<kE>;
  const FlashExtents extents(n);
  const FlashOrder::Place place = order.Find(blockIdx.x);
  const CudaHead key_head = CudaHead::Key(n, place.head);
  const int first = place.tile * Tiles::kRows;
  const QueryWalk<T, kE, kQueries> walk = {n,
                                           extents,
                                           operands,
                                           key_head,
                                           v + Tiles::kRows * kFlashStride<kE>,
                                           extents.FirstQuery(first) / kQueries * kQueries};
  LoadFlashTile<T, kE, Tiles::kRows>(operands.k.Rows(key_head), first, extents.t, extents.e, k);
  LoadFlashTile<T, kE, Tiles::kRows>(operands.v.Rows(key_head), first, extents.t, extents.e, v);
  QueryTile now = {.g = 0, .query = walk.begin, .stage = 0};
  walk.Load(now);

  const SeeingQueries<kM> see(first, extents);
  T* const own_k = k + FlashWarp() * 16 * kM * kFlashStride<kE>;
  T* const own_v = v + FlashWarp() * 16 * kM * kFlashStride<kE>;
  float k_sums[kM][kE / 8][4] = {};
  float v_sums[kM][kE / 8][4] = {};
  WaitForCopies();
  __syncthreads();
  while (walk.Has(now)) {
    const QueryTile next = walk.Next(now);
    if (walk.Has(next)) walk.Load(next);  // all are done with the tile that was there
    if (now.query + kQueries > see.some && see.some < extents.s) {
      const T* const q = walk.Queries(now);
      const T* const dy = walk.Dy(now);
      const float* const statistics = walk.Statistics(now);
      const auto lse = [&](int, int j, int x) { return statistics[8 * j + FlashColumn(x)]; };
      const auto delta = [&](int, int j, int x) { return statistics[kQueries + 8 * j + FlashColumn(x)]; };
      // [keys, queries] = k [keys, e] q^T [e, queries], and v dy^T
      float p[kM][kQueries / 8][4];
      float ds[kM][kQueries / 8][4];
      MultiplyFlashRows<T, kE>(own_k, q, p);
      MultiplyFlashRows<T, kE>(own_v, dy, ds);
      const FlashScoreGradients<T, kChanged> gradients = {n, changes, extents, walk.Head(now)};
      const bool partial = now.query < see.all || now.query + kQueries > extents.s;
      gradients.template Tile</*kRowsAreKeys=*/true>(now.query, see.own, partial, lse, delta, p, ds);
      // dk [keys, e] += ds [keys, queries] q [queries, e], and dv += p dy
      AddFlashProduct<T, kE>(ds, q, k_sums);
      AddFlashProduct<T, kE>(p, dy, v_sums);
    }
    WaitForCopies();
    __syncthreads();
    now = next;
  }
  StoreFlashSums<T, kE, kM>(k_sums, static_cast<float>(n.scale), see.own, extents.t, extents.e, own_k,
                            operands.dk.Rows(key_head));
  StoreFlashSums<T, kE, kM>(v_sums, 1.0f, see.own, extents.t, extents.e, own_v, operands.dv.Rows(key_head));
}

}  // namespace

template <class T>
void LaunchFlashKeyGrad(CudaStreamRef stream, const CudaAttention& n, const CudaScoreChanges& changes,
                        const FlashGradOperands<T>& operands) {
  WithFlashKernel(n.e, changes.has_mask, [&](auto elements, auto is_changed) {
    constexpr int kE = decltype(elements)::value;
    constexpr bool kChanged = decltype(is_changed)::value;
    using Tiles = KeyGradTiles<kE, kChanged>;
    // What the blocks of a key head walk over: q and dy of all its query heads.
    const int64_t head_bytes = 2 * n.s * n.g * n.e * static_cast<int64_t>(sizeof(T));
    const FlashOrder order = FlashOrder::Of(n.t, Tiles::kRows, n.key_heads(), head_bytes);
    LaunchCuda(stream,
               {.blocks = order.blocks(),
                .threads = kFlashThreads,
                .shared_bytes = Tiles::template SharedBytes<T>()},
               FlashKeyGradKernel<T, kE, kChanged>, n, changes, operands, order);
  });
}

template void LaunchFlashKeyGrad(CudaStreamRef, const CudaAttention&, const CudaScoreChanges&,
                                 const FlashGradOperands<BFloat16>&);
template void LaunchFlashKeyGrad(CudaStreamRef, const CudaAttention&, const CudaScoreChanges&,
                                 const FlashGradOperands<Float16>&);

}  // namespace weft
