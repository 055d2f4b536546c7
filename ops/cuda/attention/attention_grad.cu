#include <cuda_runtime.h>

#include "ops/attention/attention.h"
#include "ops/attention/masked_attention.h"
#include "ops/cuda/attention/attention_grad_tile.h"
#include "ops/cuda/attention/flash_attention.h"
#include "ops/cuda/blocks/dynamic_shared.h"
#include "ops/op/kernel.h"

// Halves have flash_key_grad.cu and flash_query_grad.cu, but for wide heads. One kernel's blocks own keys and
// walk over the queries that see them, another's own queries and walk over the keys that they see. Scores are
// computed in both: the price of sums that nobody shares, so in one order.
// FlashAttention-2 computes scores once and adds dq from the blocks of keys by atomics instead: in another
// order in every run, and so to other bits.

namespace weft {
namespace {

template <class Tile>
__global__ void __launch_bounds__(kTileThreads)
    KeyGradKernel(CudaAttention n, CudaScoreChanges changes,
                  AttentionGradOperands<typename Tile::Element> operands,
                  CudaHeads<typename Tile::Element> dk, CudaHeads<typename Tile::Element> dv) {
  using C = typename Tile::C;
  C* const k = DynamicShared<C>();
  C* const v = k + Tile::kElements;
  C* const q = v + Tile::kElements;
  C* const dy = q + Tile::kElements;
  C* const scores = dy + Tile::kElements;
  // The first keys first: under a causal mask most queries see them.
  const int64_t key = blockIdx.x / n.key_heads() * Tile::kRows;
  CudaHead head = CudaHead::Key(n, blockIdx.x % n.key_heads());
  const int e = static_cast<int>(n.e);
  LoadTile<Tile>(operands.k.Rows(head), key, n.t, e, k);
  LoadTile<Tile>(operands.v.Rows(head), key, n.t, e, v);
  typename Tile::Sums k_sums;
  typename Tile::Sums v_sums;
  ClearSums<Tile>(k_sums);
  ClearSums<Tile>(v_sums);
  const int64_t begin = n.FirstQuery(key) / Tile::kRows * Tile::kRows;
  // Query heads that share the keys are this block's too: their sums stay in registers, in the order of the
  // heads, and no second kernel adds them up.
  for (; head.g < n.g; ++head.g) {
    for (int64_t query = begin; query < n.s; query += Tile::kRows) {
      __syncthreads();  // the tiles before are done with
      LoadTile<Tile>(operands.q.Rows(head), query, n.s, e, q);
      LoadTile<Tile>(operands.dy.Rows(head), query, n.s, e, dy);
      __syncthreads();
      typename Tile::Scores p;
      typename Tile::Scores ds;
      ScoreGradients<Tile>(n, changes, head, operands, query, key, q, k, v, dy, p, ds);
      const int rows = RowsOfTile<Tile>(query, n.s);
      // p and ds pass through one buffer, so each is stored between two barriers: before the first all
      // threads have read what was there, before the second all have written.
      StoreScores<Tile>(p, scores);
      __syncthreads();
      // dv [keys, e] += p^T [keys, queries] dy [queries, e]
      MultiplyTransposed<Tile>(scores, dy, rows, v_sums);
      __syncthreads();
      StoreScores<Tile>(ds, scores);
      __syncthreads();
      // dk [keys, e] += scale ds^T [keys, queries] q [queries, e]
      MultiplyTransposed<Tile>(scores, q, rows, k_sums);
    }
  }
  head.g = 0;
  // The factor of the scores comes in at the end, once per element of dk instead of once per score.
  const C scale = static_cast<C>(n.scale);
  StoreSums<Tile>(
      k_sums, [&](int) { return scale; }, key, n.t, e, dk.Rows(head));
  StoreSums<Tile>(
      v_sums, [&](int) { return C(1); }, key, n.t, e, dv.Rows(head));
}

template <class Tile>
__global__ void __launch_bounds__(kTileThreads)
    QueryGradKernel(CudaAttention n, CudaScoreChanges changes,
                    AttentionGradOperands<typename Tile::Element> operands,
                    CudaHeads<typename Tile::Element> dq) {
  using C = typename Tile::C;
  C* const q = DynamicShared<C>();
  C* const dy = q + Tile::kElements;
  C* const k = dy + Tile::kElements;
  C* const v = k + Tile::kElements;
  C* const scores = v + Tile::kElements;
  const int64_t tiles = (n.s + Tile::kRows - 1) / Tile::kRows;
  const int64_t query = (tiles - 1 - blockIdx.x / n.heads()) * Tile::kRows;
  const CudaHead head = CudaHead::Query(n, blockIdx.x % n.heads());
  const int64_t last = query + Tile::kRows < n.s ? query + Tile::kRows - 1 : n.s - 1;
  const int e = static_cast<int>(n.e);
  LoadTile<Tile>(operands.q.Rows(head), query, n.s, e, q);
  LoadTile<Tile>(operands.dy.Rows(head), query, n.s, e, dy);
  typename Tile::Sums sums;
  ClearSums<Tile>(sums);
  const int64_t end = n.SeenBy(last);
  for (int64_t key = 0; key < end; key += Tile::kRows) {
    __syncthreads();  // the tiles before are done with
    LoadTile<Tile>(operands.k.Rows(head), key, n.t, e, k);
    LoadTile<Tile>(operands.v.Rows(head), key, n.t, e, v);
    __syncthreads();
    typename Tile::Scores p;
    typename Tile::Scores ds;
    ScoreGradients<Tile>(n, changes, head, operands, query, key, q, k, v, dy, p, ds);
    StoreScores<Tile>(ds, scores);
    __syncthreads();
    // dq [queries, e] += scale ds [queries, keys] k [keys, e]
    MultiplyByRows<Tile>(scores, k, RowsOfTile<Tile>(key, n.t), sums);
  }
  const C scale = static_cast<C>(n.scale);
  StoreSums<Tile>(
      sums, [&](int) { return scale; }, query, n.s, e, dq.Rows(head));
}

// Both ops' kernel; without queries the gradients of keys are 0, without keys those of queries.
void RunBackward(const KernelCallBase& call, const CudaAttentionGradTensors& tensors,
                 const CudaScoreChanges& changes) {
  const CudaAttention& n = tensors.n;
  if (n.s == 0 || n.t == 0 || n.heads() == 0) {
    for (const Tensor& output : call.outputs) FillTensor(output, 0);
    return;
  }
  VisitFloating(tensors.q.dtype(), "attention_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    // delta is made once, by a kernel of its own: both kernels below want it in every tile
    // (FlashAttention-2).
    const Tensor delta = Tensor::Empty(call.context.allocator, tensors.lse.dtype(), {n.heads() * n.s});
    const AttentionGradOperands<T> operands = MakeAttentionGradOperands<T>(call, tensors, delta);
    if constexpr (kIsFlashType<T>) {
      if (ServesFlash<T>(n)) {
        const FlashGradOperands<T> flash = {.q = operands.q,
                                            .k = operands.k,
                                            .v = operands.v,
                                            .dy = operands.dy,
                                            .dq = CudaHeads<T>(call.outputs[0], n),
                                            .dk = CudaHeads<T>(call.outputs[1], n),
                                            .dv = CudaHeads<T>(call.outputs[2], n),
                                            .lse = operands.lse,
                                            .delta = operands.delta};
        LaunchFlashKeyGrad(KernelStream(call), n, changes, flash);
        return LaunchFlashQueryGrad(KernelStream(call), n, changes, flash);
      }
    }
    WithGradTile<T, kLeastPlainTile<T>>(n.e, [&](auto chosen) {
      using Tile = typename decltype(chosen)::type;
      const auto grid = [&](int64_t rows, int64_t heads) {
        const int64_t tiles = (rows + Tile::kRows - 1) / Tile::kRows;
        return CudaGrid{.blocks = static_cast<unsigned>(tiles * heads),
                        .threads = kTileThreads,
                        .shared_bytes = kGradSharedBytes<Tile>};
      };
      LaunchCuda(KernelStream(call), grid(n.t, n.key_heads()), KeyGradKernel<Tile>, n, changes, operands,
                 CudaHeads<T>(call.outputs[1], n), CudaHeads<T>(call.outputs[2], n));
      LaunchCuda(KernelStream(call), grid(n.s, n.heads()), QueryGradKernel<Tile>, n, changes, operands,
                 CudaHeads<T>(call.outputs[0], n));
    });
  });
}

void AttentionGrad(const KernelCall<AttentionAttributes, NoScalars>& call) {
  RunBackward(call, CudaAttentionGradTensors::Of(call, call.attributes(), /*y=*/3, /*lse=*/4, /*dy=*/5),
              CudaScoreChanges());
}

void MaskedAttentionGrad(const KernelCall<AttentionAttributes, DropoutScalars>& call) {
  const auto tensors = CudaAttentionGradTensors::Of(call, call.attributes(), /*y=*/4, /*lse=*/5, /*dy=*/6);
  RunBackward(call, tensors,
              CudaScoreChanges::Of(tensors.n, call.inputs[3], call.input_boxes[0], call.scalars()));
}

const RegisterKernel kRegister(kAttentionGrad, DeviceType::kCuda, AttentionGrad);
const RegisterKernel kRegisterMasked(kMaskedAttentionGrad, DeviceType::kCuda, MaskedAttentionGrad);

}  // namespace
}  // namespace weft
