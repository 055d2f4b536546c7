#ifndef WEFT_OPS_CUDA_ATTENTION_GRAD_TILE_H_
#define WEFT_OPS_CUDA_ATTENTION_GRAD_TILE_H_

#include <cuda_runtime.h>

#include <limits>

#include "ops/cuda/attention_heads.h"
#include "ops/cuda/attention_tiles.h"
#include "ops/cuda/kernel_stream.h"
#include "ops/cuda/reduce_block.h"
#include "runtime/device/cuda/launch.h"

namespace weft {

// What the gradients of q, k and v and that of a mask begin with: one tile of scores, and what it passes
// back. The scores are computed again from q, k and lse.

template <class T>
struct AttentionGradOperands {
  using C = typename AttentionTile<T, 64>::C;
  CudaHeads<const T> q, k, v, y, dy;
  const C* lse = nullptr;  // [heads, s]
  C* delta = nullptr;      // [heads, s]: the sum over e of dy y, which the softmax's own sum passes back
};

// p becomes the probabilities that multiplied v, and ds the gradients of scale q k^T + mask, of the queries
// from `query` and the keys from `key`, 0 where a query does not see a key. All four tiles are loaded.
template <class T, int kE>
__device__ void ScoreGradients(const CudaAttention& n, const CudaScoreChanges& changes, const CudaHead& head,
                               const AttentionGradOperands<T>& operands, int64_t query, int64_t key,
                               const typename AttentionTile<T, kE>::C* q,
                               const typename AttentionTile<T, kE>::C* k,
                               const typename AttentionTile<T, kE>::C* v,
                               const typename AttentionTile<T, kE>::C* dy,
                               typename AttentionTile<T, kE>::Scores& p,
                               typename AttentionTile<T, kE>::Scores& ds) {
  using Tile = AttentionTile<T, kE>;
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

// One warp a query.
template <class T>
__global__ void AttentionDeltaKernel(CudaAttention n, AttentionGradOperands<T> operands) {
  using C = typename AttentionGradOperands<T>::C;
  const int64_t warps = static_cast<int64_t>(blockDim.x) / kWarpSize;
  const int64_t index = blockIdx.x * warps + threadIdx.x / kWarpSize;
  if (index >= n.heads() * n.s) return;  // a whole warp
  const CudaHead head = CudaHead::Query(n, index / n.s);
  const CudaHeadRows<const T> y = operands.y.Rows(head);
  const CudaHeadRows<const T> dy = operands.dy.Rows(head);
  const int64_t query = index % n.s;
  C sum = 0;
  for (int64_t i = threadIdx.x % kWarpSize; i < n.e; i += kWarpSize) {
    sum += static_cast<C>(y.data[query * y.stride + i]) * static_cast<C>(dy.data[query * dy.stride + i]);
  }
  sum = ReduceWarp(sum, AddValues());
  if (threadIdx.x % kWarpSize == 0) operands.delta[index] = sum;
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
  constexpr int64_t kRows = kThreads / kWarpSize;
  LaunchCuda(
      KernelStream(call),
      {.blocks = static_cast<unsigned>((delta.num_elements() + kRows - 1) / kRows), .threads = kThreads},
      AttentionDeltaKernel<T>, tensors.n, operands);
  return operands;
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_GRAD_TILE_H_
