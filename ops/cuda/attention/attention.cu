#include <cuda_runtime.h>

#include <limits>

#include "ops/attention/attention.h"
#include "ops/attention/masked_attention.h"
#include "ops/cuda/attention/attention_heads.h"
#include "ops/cuda/attention/attention_tiles.h"
#include "ops/cuda/attention/flash_attention.h"
#include "ops/cuda/blocks/dynamic_shared.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/op/kernel.h"
#include "runtime/device/cuda/launch.h"

// Halves have flash_attention.cu, but for wide heads. For the rest, a block takes a tile of queries of one
// head and walks over the keys that they see, a tile at a time, with a running softmax (FlashAttention-2).
// Scores live in registers, and in shared memory as the operand of the second product.
// f32 stays off tensor cores, which would round its operands to 11 significant bits: nothing in a call of
// attention allows that.

namespace weft {
namespace {

template <class T>
struct ForwardOperands {
  using C = AttentionSum<T>;
  CudaHeads<const T> q, k, v;
  CudaHeads<T> y;
  C* lse = nullptr;
};

// The maximum or sum over the 16 threads that own a row; every one of them gets it.
// A row's threads are one half of a warp and the masks stay below 16, so a shuffle never leaves the row, and
// neither shared memory nor a barrier is needed.
template <class C>
__device__ C MaxOfRow(C value) {
#pragma unroll
  for (int mask = kTileEdge / 2; mask > 0; mask /= 2) {
    const C other = __shfl_xor_sync(0xffffffffu, value, mask);
    value = other > value ? other : value;
  }
  return value;
}
template <class C>
__device__ C SumOfRow(C value) {
#pragma unroll
  for (int mask = kTileEdge / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  return value;
}

// The running softmax of the rows that a thread owns. The maximum is the same in all 16 that own them, and so
// is the sum when Finish has added up theirs.
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867. The maximum
// becomes common in every step, since all 16 scale by it; the sum does not before the last one, which leaves
// one reduction per tile instead of two.
template <class Tile>
struct RunningSoftmax {
  using C = typename Tile::C;
  C max[Tile::kRowsOfThread];
  C sum[Tile::kRowsOfThread];

  // Row i takes in the thread's scores of it, of which those with a bit in `seen` count; they become
  // probabilities relative to the new maximum. Returns the factor of what was summed before.
  __device__ C Step(int i, C (&scores)[Tile::kRowsOfThread], unsigned seen) {
    C largest = -std::numeric_limits<C>::infinity();
#pragma unroll
    for (int j = 0; j < Tile::kRowsOfThread; ++j) {
      if ((seen >> j & 1u) != 0 && scores[j] > largest) largest = scores[j];
    }
    largest = MaxOfRow(largest);
    const C before = max[i];
    if (largest > before) max[i] = largest;
    // What is not seen becomes 0 by choice, not as exp(-inf): before a row has seen a key its maximum is -inf
    // too, and their difference is NaN.
    C added = 0;
#pragma unroll
    for (int j = 0; j < Tile::kRowsOfThread; ++j) {
      scores[j] = (seen >> j & 1u) != 0 ? AttentionExp(scores[j] - max[i]) : C(0);
      added += scores[j];
    }
    // Also where both are -inf, whose difference is NaN.
    const C rescale = before == max[i] ? C(1) : AttentionExp(before - max[i]);
    sum[i] = sum[i] * rescale + added;
    return rescale;
  }

  __device__ void Finish() {
#pragma unroll
    for (int i = 0; i < Tile::kRowsOfThread; ++i) sum[i] = SumOfRow(sum[i]);
  }
};

// One tile of scores [queries, keys], the products q k^T, becomes weights relative to the largest score so far;
// the sums of what came before are scaled to match.
template <class T, class Tile>
__device__ void WeighScores(const CudaAttention& n, const CudaScoreChanges& changes, const CudaHead& head,
                            int64_t first, int64_t key, typename Tile::Scores& scores,
                            RunningSoftmax<Tile>& softmax, typename Tile::Sums& sums) {
  using C = typename Tile::C;
  constexpr int kM = Tile::kRowsOfThread;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const int64_t query = first + TileRow() + i * kTileEdge;
    const int64_t seen_end = query < n.s ? n.SeenBy(query) : 0;
    unsigned seen = 0;
#pragma unroll
    for (int j = 0; j < kM; ++j) {
      const int64_t at = key + TileColumn() + j * kTileEdge;
      scores[i][j] *= static_cast<C>(n.scale);
      bool sees = at < seen_end;
      if (changes.has_mask && sees) sees = changes.Mask<T>(head, query, at, scores[i][j]);
      seen |= (sees ? 1u : 0u) << j;
    }
    const C rescale = softmax.Step(i, scores[i], seen);
    // After the step: the sum is that of all probabilities, dropped or not, and so is lse. Backward
    // multiplies by the same factors.
    if (changes.drops) {
#pragma unroll
      for (int j = 0; j < kM; ++j) {
        scores[i][j] *= changes.Factor<C>(n, head, query, key + TileColumn() + j * kTileEdge);
      }
    }
#pragma unroll
    for (int j = 0; j < Tile::kVectorsOfThread; ++j) {
#pragma unroll
      for (int v = 0; v < Tile::kVector; ++v) sums[i][j].at[v] *= rescale;
    }
  }
}

// lse = log sum exp of each query's scores, -inf for a query that sees no key.
template <class Tile>
__device__ void StoreLogSums(const CudaAttention& n, const CudaHead& head, int64_t first,
                             const RunningSoftmax<Tile>& softmax, typename Tile::C* lse) {
  using C = typename Tile::C;
  constexpr int kM = Tile::kRowsOfThread;
  if (TileColumn() != 0) return;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const int64_t query = first + TileRow() + i * kTileEdge;
    if (query >= n.s) continue;
    lse[head.Index(n) * n.s + query] = softmax.sum[i] == 0 ? -std::numeric_limits<C>::infinity()
                                                           : softmax.max[i] + AttentionLog(softmax.sum[i]);
  }
}

template <class Tile>
__global__ void __launch_bounds__(kTileThreads)
    AttentionKernel(CudaAttention n, CudaScoreChanges changes,
                    ForwardOperands<typename Tile::Element> operands) {
  using T = typename Tile::Element;
  using C = typename Tile::C;
  constexpr int kM = Tile::kRowsOfThread;
  C* const q = DynamicShared<C>();
  // Keys and values take turns in one tile, at the price of one more barrier per tile of keys. A block of f32
  // heads of 64 elements then has 51 KiB of shared memory; with a tile for values it would have 68.
  C* const kv = q + Tile::kElements;  // keys, then values
  C* const p = kv + Tile::kElements;
  // The last queries first: under a causal mask they take longest.
  const int64_t tiles = (n.s + Tile::kRows - 1) / Tile::kRows;
  const int64_t first = (tiles - 1 - blockIdx.x / n.heads()) * Tile::kRows;
  const CudaHead head = CudaHead::Query(n, blockIdx.x % n.heads());
  const int64_t last = first + Tile::kRows < n.s ? first + Tile::kRows - 1 : n.s - 1;
  const int e = static_cast<int>(n.e);

  LoadTile<Tile>(operands.q.Rows(head), first, n.s, e, q);
  RunningSoftmax<Tile> softmax;
  typename Tile::Sums sums;
  ClearSums<Tile>(sums);
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    softmax.max[i] = -std::numeric_limits<C>::infinity();
    softmax.sum[i] = 0;
  }
  const int64_t end = n.SeenBy(last);
  for (int64_t key = 0; key < end; key += Tile::kRows) {
    __syncthreads();  // the tile before is done with
    LoadTile<Tile>(operands.k.Rows(head), key, n.t, e, kv);
    __syncthreads();
    // [queries, keys] = scale q [queries, e] k^T [e, keys]
    typename Tile::Scores scores;
    MultiplyRows<Tile>(q, kv, e, scores);
    WeighScores<T, Tile>(n, changes, head, first, key, scores, softmax, sums);
    StoreScores<Tile>(scores, p);
    __syncthreads();  // keys are done with, and scores are there
    LoadTile<Tile>(operands.v.Rows(head), key, n.t, e, kv);
    __syncthreads();
    // y [queries, e] += p [queries, keys] v [keys, e]
    MultiplyByRows<Tile>(p, kv, RowsOfTile<Tile>(key, n.t), sums);
  }
  softmax.Finish();
  // One division per row at the end instead of one per tile (FlashAttention-2).
  const auto factor = [&](int i) { return softmax.sum[i] == 0 ? C(0) : C(1) / softmax.sum[i]; };
  StoreSums<Tile>(sums, factor, first, n.s, e, operands.y.Rows(head));
  StoreLogSums<Tile>(n, head, first, softmax, operands.lse);
}

// Both ops' kernel; `make_changes(n)` gives the CudaScoreChanges.
template <class R, class MakeChanges>
void RunForward(const KernelCall<AttentionAttributes, R>& call, const MakeChanges& make_changes) {
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const auto heads = [&](int operand) { return AsCudaHeads(call.inputs[operand], call.context.allocator); };
  const Tensor q = heads(0), k = heads(1), v = heads(2);
  const CudaAttention n = CudaAttention::Of(q, k, call.attributes());
  const CudaScoreChanges changes = make_changes(n);
  VisitFloating(y.dtype(), "attention", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = AttentionSum<T>;
    ForwardOperands<T> operands;
    operands.q = CudaHeads<const T>(q, n);
    operands.k = CudaHeads<const T>(k, n);
    operands.v = CudaHeads<const T>(v, n);
    operands.y = CudaHeads<T>(y, n);
    operands.lse = call.outputs[1].template data<C>();
    if constexpr (kIsFlashType<T>) {
      if (ServesFlash<T>(n)) {
        return LaunchFlashAttention<T>(KernelStream(call), n, changes,
                                       {operands.q, operands.k, operands.v, operands.y, operands.lse});
      }
    }
    // Of halves only wide heads come here: the smaller tiles, which no call would reach, are not compiled.
    WithAttentionTile<T, kLeastPlainTile<T>>(n.e, [&](auto elements) {
      using Tile = AttentionTile<T, elements()>;
      const int64_t tiles = (n.s + Tile::kRows - 1) / Tile::kRows;
      LaunchCuda(KernelStream(call),
                 {.blocks = static_cast<unsigned>(tiles * n.heads()),
                  .threads = kTileThreads,
                  .shared_bytes = Tile::SharedBytes(/*num_tiles=*/2)},
                 AttentionKernel<Tile>, n, changes, operands);
    });
  });
}

void Attention(const KernelCall<AttentionAttributes, NoScalars>& call) {
  RunForward(call, [](const CudaAttention&) { return CudaScoreChanges(); });
}

void MaskedAttention(const KernelCall<AttentionAttributes, DropoutScalars>& call) {
  RunForward(call, [&](const CudaAttention& n) {
    return CudaScoreChanges::Of(n, call.inputs[3], call.input_boxes[0], call.scalars());
  });
}

const RegisterKernel kRegister(kAttention, DeviceType::kCuda, Attention);
const RegisterKernel kRegisterMasked(kMaskedAttention, DeviceType::kCuda, MaskedAttention);

}  // namespace
}  // namespace weft
