#ifndef WEFT_OPS_CUDA_ATTENTION_FLASH_KEY_WALK_H_
#define WEFT_OPS_CUDA_ATTENTION_FLASH_KEY_WALK_H_

#include <cuda_runtime.h>

#include "ops/cuda/attention/attention_heads.h"
#include "ops/cuda/attention/flash_order.h"
#include "ops/cuda/attention/flash_tiles.h"
#include "runtime/device/cuda/launch.h"

namespace weft {

// What the kernels share whose blocks own queries: which these are, and the walk over the keys that they see.

// A block's kRows queries, of which each warp owns 16 kM. Keys are seen below a bound.
template <int kRows, int kM>
struct FlashQueries {
  int first = 0;
  CudaHead head;
  int own = 0;           // the warp's first
  int seen = 0;          // by some query of the block
  int seen_by_some = 0;  // of the warp's
  int seen_by_all = 0;   // of the warp's; 0 if some of them are none

  // The last queries first: under a causal mask they take longest.
  __device__ FlashQueries(const CudaAttention& n, const FlashExtents& extents, const FlashOrder& order) {
    const FlashOrder::Place place = order.Find(blockIdx.x);
    head = CudaHead::Query(n, place.head);
    first = (static_cast<int>(order.tiles) - 1 - place.tile) * kRows;
    const int last = (first + kRows < extents.s ? first + kRows : extents.s) - 1;
    seen = extents.SeenBy(last);
    own = first + FlashWarp() * 16 * kM;
    const int own_end = own + 16 * kM;
    seen_by_some = own < extents.s ? extents.SeenBy((own_end < extents.s ? own_end : extents.s) - 1) : 0;
    seen_by_all = own_end <= extents.s ? extents.SeenBy(own) : 0;
  }
  // Where the warp's rows lie in a tile.
  template <int kE>
  __device__ static int Offset() {
    return FlashWarp() * 16 * kM * kFlashStride<kE>;
  }
};

// Tiles of kKeys keys and as many values, of which shared memory has two at a time.
template <class T, int kE, int kKeys>
struct FlashKeyWalk {
  static constexpr int kElements = 4 * kKeys * kFlashStride<kE>;
  CudaHeadRows<const T> k, v;
  const FlashExtents& extents;
  T* stages = nullptr;

  __device__ T* Keys(int tile) const { return stages + tile % 2 * (kElements / 2); }
  __device__ T* Values(int tile) const { return Keys(tile) + kElements / 4; }
  // Begins to load a tile, where the one before the last was.
  __device__ void Load(int tile) const {
    LoadFlashTile<T, kE, kKeys>(k, tile * kKeys, extents.t, extents.e, Keys(tile));
    LoadFlashTile<T, kE, kKeys>(v, tile * kKeys, extents.t, extents.e, Values(tile));
  }
};

// Launches such a kernel of T: a block for each Tiles::kRows queries of each head.
template <class T, class Tiles, class Operands>
void LaunchOverQueries(CudaStreamRef stream, const CudaAttention& n, const CudaScoreChanges& changes,
                       const Operands& operands,
                       void (*kernel)(CudaAttention, CudaScoreChanges, Operands, FlashOrder)) {
  // Keys and values, of which the g query heads of a key head share one copy.
  const int64_t head_bytes = 2 * n.t * n.e * static_cast<int64_t>(sizeof(T)) / n.g;
  const FlashOrder order = FlashOrder::Of(n.s, Tiles::kRows, n.heads(), head_bytes);
  LaunchCuda(
      stream,
      {.blocks = order.blocks(), .threads = kFlashThreads, .shared_bytes = Tiles::kElements * sizeof(T)},
      kernel, n, changes, operands, order);
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_FLASH_KEY_WALK_H_
