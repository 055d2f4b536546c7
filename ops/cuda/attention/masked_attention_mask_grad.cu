#include <cuda_runtime.h>

#include "ops/attention/masked_attention.h"
#include "ops/cuda/attention/attention_grad_tile.h"
#include "ops/cuda/blocks/dynamic_shared.h"
#include "ops/op/kernel.h"

// The gradient of an added mask. A block owns a tile of the mask's queries and keys, one index where the mask
// repeats, and walks over all scores that it meets, in one order.

namespace weft {
namespace {

// Which of the extents of scores the mask has, the rest being 1.
struct MaskExtents {
  int64_t b = 1, h = 1, g = 1;
  bool has_queries = false;
  bool has_keys = false;

  MaskExtents(const CudaAttention& n, const Shape& mask) : b(mask[0]) {
    const bool split = mask.ndim() == 5;
    h = split ? mask[1] : mask[1] == 1 ? 1 : n.h;
    g = split ? mask[2] : mask[1] == 1 ? 1 : n.g;
    has_queries = mask[split ? 3 : 2] != 1;
    has_keys = mask[split ? 4 : 3] != 1;
  }
};

// Adds the scores over rows, columns or both, as the mask repeats, and writes what is left. All scores are
// the thread's own, and 0 outside the tensor.
// The walk has summed tile upon tile, place by place. Only where the mask repeats along queries or keys do
// the places of the one tile that is left add up, by one thread per result and in row-major order.
template <class Tile>
__device__ void StoreMaskSums(const typename Tile::Scores& sums, typename Tile::C* scores,
                              const CudaAttention& n, const CudaScoreChanges& changes, const MaskExtents& own,
                              const CudaHead& head, int64_t query, int64_t key,
                              typename Tile::Element* d_mask) {
  using C = typename Tile::C;
  __syncthreads();
  StoreScores<Tile>(sums, scores);
  __syncthreads();
  const int rows = own.has_queries ? Tile::kRows : 1;
  const int columns = own.has_keys ? Tile::kRows : 1;
  for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += kTileThreads) {
    const int row = i / columns;
    const int column = i % columns;
    if (query + row >= n.s || key + column >= n.t) continue;
    C sum = 0;
    for (int r = row; r < (own.has_queries ? row + 1 : Tile::kRows); ++r) {
      for (int c = column; c < (own.has_keys ? column + 1 : Tile::kRows); ++c) {
        sum += scores[r * Tile::kScoreStride + c];
      }
    }
    d_mask[changes.MaskOffset(head, query + row, key + column)] = ConvertElement<typename Tile::Element>(sum);
  }
}

template <class Tile>
__global__ void __launch_bounds__(kTileThreads)
    MaskGradKernel(CudaAttention n, CudaScoreChanges changes, MaskExtents own,
                   AttentionGradOperands<typename Tile::Element> operands, typename Tile::Element* d_mask) {
  using C = typename Tile::C;
  C* const q = DynamicShared<C>();
  C* const dy = q + Tile::kElements;
  C* const k = dy + Tile::kElements;
  C* const v = k + Tile::kElements;
  C* const scores = v + Tile::kElements;
  const int64_t query_tiles = own.has_queries ? (n.s + Tile::kRows - 1) / Tile::kRows : 1;
  const int64_t key_tiles = own.has_keys ? (n.t + Tile::kRows - 1) / Tile::kRows : 1;
  int64_t index = blockIdx.x;
  const int64_t first_key = index % key_tiles * Tile::kRows;
  index /= key_tiles;
  const int64_t first_query = index % query_tiles * Tile::kRows;
  index /= query_tiles;
  const CudaHead first = {index / (own.g * own.h), index / own.g % own.h, index % own.g};
  const int64_t end_query = own.has_queries ? first_query + 1 : n.s;  // of the tiles' beginnings
  const int64_t end_key = own.has_keys ? first_key + 1 : n.t;
  const int e = static_cast<int>(n.e);
  typename Tile::Scores sums = {};
  // An extent of the mask is the step: where it is 1 the walk meets all of the dim, where it is whole only
  // the block's own.
  for (CudaHead head = first; head.b < n.b; head.b += own.b) {
    for (head.h = first.h; head.h < n.h; head.h += own.h) {
      for (head.g = first.g; head.g < n.g; head.g += own.g) {
        for (int64_t query = first_query; query < end_query; query += Tile::kRows) {
          const int64_t last = query + Tile::kRows < n.s ? query + Tile::kRows - 1 : n.s - 1;
          const int64_t seen = n.SeenBy(last);
          __syncthreads();
          LoadTile<Tile>(operands.q.Rows(head), query, n.s, e, q);
          LoadTile<Tile>(operands.dy.Rows(head), query, n.s, e, dy);
          for (int64_t key = first_key; key < end_key && key < seen; key += Tile::kRows) {
            __syncthreads();
            LoadTile<Tile>(operands.k.Rows(head), key, n.t, e, k);
            LoadTile<Tile>(operands.v.Rows(head), key, n.t, e, v);
            __syncthreads();
            typename Tile::Scores p;
            typename Tile::Scores ds;
            ScoreGradients<Tile>(n, changes, head, operands, query, key, q, k, v, dy, p, ds);
#pragma unroll
            for (int i = 0; i < Tile::kRowsOfThread; ++i) {
#pragma unroll
              for (int j = 0; j < Tile::kRowsOfThread; ++j) sums[i][j] += ds[i][j];
            }
          }
        }
      }
    }
  }
  StoreMaskSums<Tile>(sums, scores, n, changes, own, first, first_query, first_key, d_mask);
}

void MaskedAttentionMaskGrad(const KernelCall<AttentionAttributes, DropoutScalars>& call) {
  const Tensor& d_mask = call.outputs[0];
  if (d_mask.num_elements() == 0) return;
  const auto tensors = CudaAttentionGradTensors::Of(call, call.attributes(), /*y=*/4, /*lse=*/5, /*dy=*/6);
  const CudaAttention& n = tensors.n;
  if (tensors.q.num_elements() == 0 || tensors.k.num_elements() == 0) {
    FillTensor(d_mask, 0);
    return;
  }
  // A row-major mask, since its gradient, which has the same strides, is.
  const Tensor mask =
      call.inputs[3].IsContiguous() ? call.inputs[3] : CloneTensor(call.inputs[3], call.context.allocator);
  const auto changes = CudaScoreChanges::Of(n, mask, call.input_boxes[0], call.scalars());
  const MaskExtents own(n, mask.shape());
  VisitFloating(d_mask.dtype(), "masked_attention_mask_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor delta = Tensor::Empty(call.context.allocator, tensors.lse.dtype(), {n.heads() * n.s});
    const AttentionGradOperands<T> operands = MakeAttentionGradOperands<T>(call, tensors, delta);
    WithGradTile<T>(n.e, [&](auto chosen) {
      using Tile = typename decltype(chosen)::type;
      const int64_t query_tiles = own.has_queries ? (n.s + Tile::kRows - 1) / Tile::kRows : 1;
      const int64_t key_tiles = own.has_keys ? (n.t + Tile::kRows - 1) / Tile::kRows : 1;
      LaunchCuda(KernelStream(call),
                 {.blocks = static_cast<unsigned>(own.b * own.h * own.g * query_tiles * key_tiles),
                  .threads = kTileThreads,
                  .shared_bytes = kGradSharedBytes<Tile>},
                 MaskGradKernel<Tile>, n, changes, own, operands, d_mask.data<T>());
    });
  });
}

const RegisterKernel kRegister(kMaskedAttentionMaskGrad, DeviceType::kCuda, MaskedAttentionMaskGrad);

}  // namespace
}  // namespace weft
