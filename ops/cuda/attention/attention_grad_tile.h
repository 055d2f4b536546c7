#ifndef WEFT_OPS_CUDA_ATTENTION_ATTENTION_GRAD_TILE_H_
#define WEFT_OPS_CUDA_ATTENTION_ATTENTION_GRAD_TILE_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/cuda/attention/attention_heads.h"
#include "ops/cuda/attention/attention_tiles.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "runtime/base/dtype.h"
#include "runtime/device/cuda/launch.h"

namespace weft {

// What the gradients of q, k and v and that of a mask begin with: one tile of scores, and what it passes
// back. The scores are computed again from q, k and lse.

template <class T>
struct AttentionGradOperands {
  using C = AttentionSum<T>;
  CudaHeads<const T> q, k, v, y, dy;
  const C* lse = nullptr;  // [heads, s]
  C* delta = nullptr;      // [heads, s]: the sum over e of dy y, which the softmax's own sum passes back
};

// p becomes the probabilities that multiplied v, and ds the gradients of scale q k^T + mask, of the queries
// from `query` and the keys from `key`, 0 where a query does not see a key. All four tiles are loaded.
template <class Tile>
__device__ void ScoreGradients(const CudaAttention& n, const CudaScoreChanges& changes, const CudaHead& head,
                               const AttentionGradOperands<typename Tile::Element>& operands, int64_t query,
                               int64_t key, const typename Tile::C* q, const typename Tile::C* k,
                               const typename Tile::C* v, const typename Tile::C* dy,
                               typename Tile::Scores& p, typename Tile::Scores& ds) {
  using T = typename Tile::Element;
  using C = typename Tile::C;
  MultiplyRows<Tile>(q, k, static_cast<int>(n.e), p);
  MultiplyRows<Tile>(dy, v, static_cast<int>(n.e), ds);
  const C scale = static_cast<C>(n.scale);
#pragma unroll
  for (int i = 0; i < Tile::kRowsOfThread; ++i) {
    const int64_t row = query + TileRow() + i * kTileEdge;
    const int64_t statistic = head.Index(n) * n.s + row;
    const C lse = row < n.s ? operands.lse[statistic] : C(0);
    const C delta = row < n.s ? operands.delta[statistic] : C(0);
    // A mask may leave a query without keys.
    const bool sees_none = changes.has_mask && lse == -std::numeric_limits<C>::infinity();
    const int64_t end = row < n.s && !sees_none ? n.SeenBy(row) : 0;
#pragma unroll
    for (int j = 0; j < Tile::kRowsOfThread; ++j) {
      const int64_t at = key + TileColumn() + j * kTileEdge;
      C score = p[i][j] * scale;
      bool sees = at < end;
      if (changes.has_mask && sees) sees = changes.Mask<T>(head, row, at, score);
      const C probability = sees ? AttentionExp(score - lse) : C(0);
      const C factor = changes.drops && sees ? changes.Factor<C>(n, head, row, at) : C(1);
      p[i][j] = probability * factor;
      ds[i][j] = sees ? probability * (ds[i][j] * factor - delta) : C(0);
    }
  }
}

// 8 lanes a query: halves of 64 elements are one vector a lane.
inline constexpr int kDeltaLanes = 8;
template <class T>
__global__ void AttentionDeltaKernel(CudaAttention n, AttentionGradOperands<T> operands) {
  using C = typename AttentionGradOperands<T>::C;
  constexpr int kChunk = 16 / sizeof(T);
  struct alignas(16) Chunk {
    T at[kChunk];
  };
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  // Lanes without a query go along, since the sum is a whole warp's.
  const bool has_query = thread / kDeltaLanes < n.heads() * n.s;
  const int64_t index = has_query ? thread / kDeltaLanes : 0;
  const CudaHead head = CudaHead::Query(n, index / n.s);
  const CudaHeadRows<const T> y = operands.y.Rows(head);
  const CudaHeadRows<const T> dy = operands.dy.Rows(head);
  const T* const y_row = y.data + index % n.s * y.stride;
  const T* const dy_row = dy.data + index % n.s * dy.stride;
  C sum = 0;
  for (int64_t i = thread % kDeltaLanes * kChunk; i < n.e; i += kDeltaLanes * kChunk) {
    if (y.has_vectors && dy.has_vectors) {
      const Chunk a = *reinterpret_cast<const Chunk*>(y_row + i);
      const Chunk b = *reinterpret_cast<const Chunk*>(dy_row + i);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) sum += static_cast<C>(a.at[j]) * static_cast<C>(b.at[j]);
    } else {
      for (int64_t j = i; j < i + kChunk && j < n.e; ++j) {
        sum += static_cast<C>(y_row[j]) * static_cast<C>(dy_row[j]);
      }
    }
  }
#pragma unroll
  for (int mask = kDeltaLanes / 2; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (has_query && thread % kDeltaLanes == 0) operands.delta[index] = sum;
}

// Four tiles and the scores: what the kernels of gradients share in a block.
template <class Tile>
inline constexpr size_t kGradSharedBytes = Tile::SharedBytes(/*num_tiles=*/4);

// Calls run(TypeTag<Tile>()) with the AttentionTile for heads of `e` elements, at least kLeast, of which four and the scores fit
// the shared memory of a block: half as large where the device has less than an A100 (compute capability 8.6, 8.9 and 12.0: 99
// KiB). Half of the rows, or of the elements where the rows are fewest, if that leaves enough of them.
template <class T, int kLeast = 64, class Run>
void WithGradTile(int64_t e, const Run& run) {
  constexpr size_t kLeastSharedBytes = 99 << 10;  // of the devices that Weft supports
  WithAttentionTile<T, kLeast>(e, [&](auto elements) {
    using Large = AttentionTile<T, elements()>;
    constexpr size_t kLargeBytes = kGradSharedBytes<Large>;
    if constexpr (kLargeBytes > kLeastSharedBytes) {
      using Small =
          std::conditional_t<(Large::kRows > kTileEdge), AttentionTile<T, elements(), Large::kRows / 2>,
                             AttentionTile<T, elements() / 2, Large::kRows>>;
      static_assert(kGradSharedBytes<Small> <= kLeastSharedBytes);
      if (kLargeBytes > MostCudaSharedBytes() && e <= Small::kHeadElements) {
        return run(TypeTag<Small>());
      }
    }
    run(TypeTag<Large>());
  });
}

// The operands of a call as the kernels want them, and what keeps them alive.
struct CudaAttentionGradTensors {
  CudaAttention n;
  Tensor q, k, v, y, lse, dy;

  // `y`, `lse`, `dy`: the operands' numbers.
  static CudaAttentionGradTensors Of(const KernelCallBase& call, const AttentionAttributes& attributes, int y,
                                     int lse, int dy) {
    const auto& allocator = call.context.allocator;
    CudaAttentionGradTensors tensors;
    tensors.q = AsCudaHeads(call.inputs[0], allocator);
    tensors.k = AsCudaHeads(call.inputs[1], allocator);
    tensors.v = AsCudaHeads(call.inputs[2], allocator);
    tensors.y = AsCudaHeads(call.inputs[y], allocator);
    tensors.dy = AsCudaHeads(call.inputs[dy], allocator);
    const Tensor& sums = call.inputs[lse];
    tensors.lse = sums.IsContiguous() ? sums : CloneTensor(sums, allocator);
    tensors.n = CudaAttention::Of(tensors.q, tensors.k, attributes);
    return tensors;
  }
};

// Fills delta, a tensor like lse, and returns the operands. There must be queries.
template <class T>
AttentionGradOperands<T> MakeAttentionGradOperands(const KernelCallBase& call,
                                                   const CudaAttentionGradTensors& tensors,
                                                   const Tensor& delta) {
  using C = typename AttentionGradOperands<T>::C;
  AttentionGradOperands<T> operands;
  operands.q = CudaHeads<const T>(tensors.q, tensors.n);
  operands.k = CudaHeads<const T>(tensors.k, tensors.n);
  operands.v = CudaHeads<const T>(tensors.v, tensors.n);
  operands.y = CudaHeads<const T>(tensors.y, tensors.n);
  operands.dy = CudaHeads<const T>(tensors.dy, tensors.n);
  operands.lse = tensors.lse.data<C>();
  operands.delta = delta.data<C>();
  constexpr int kThreads = 256;
  constexpr int64_t kRows = kThreads / kDeltaLanes;
  LaunchCuda(
      KernelStream(call),
      {.blocks = static_cast<unsigned>((delta.num_elements() + kRows - 1) / kRows), .threads = kThreads},
      AttentionDeltaKernel<T>, tensors.n, operands);
  return operands;
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_ATTENTION_GRAD_TILE_H_
