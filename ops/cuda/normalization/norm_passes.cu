#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/row_loop.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/normalization/norm_passes.h"
#include "ops/cuda/normalization/norm_rows.h"

namespace weft {
namespace {

// Enough blocks for any GPU, which bound the workspace of their sums.
// 132 processors, an H100's, and two or eight blocks on each: constants, since asking the device would make
// the order of the sums, and so bits, follow from its model.
constexpr int64_t kMostBlocks = 132 * 2;
constexpr int64_t kColumnBlocks = 132 * 8;
constexpr int kLanes = 32;  // of blocks that sum columns
constexpr int kSubrows = 8;

// Weight gradients of this thread's columns: dw, and with kVectors = 2 db.
// dw and db sum over rows, dx over columns. A block takes a run of rows: it writes their dx and keeps dw and
// db of its columns in registers, which go to a workspace as one row per block; a second kernel adds these.
// No atomics: the order follows from the shape.
template <class T, int kVectors>
struct WeightSums {
  using C = WideOf<T>;

  // dw += d * unit, db += d.
  __device__ void Add(const RowPack<T>& v, const RowPack<T>& d, C mean, C rstd) {
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) {
      const C gradient = ConvertOnDevice<C>(d.values[j]);
      values[0][j] += gradient * ((ConvertOnDevice<C>(v.values[j]) - mean) * rstd);
      if constexpr (kVectors == 2) values[1][j] += gradient;
    }
  }
  // `to` has kVectors rows, `stride` apart, of which this writes, or adds to, the first `count` elements.
  __device__ void AddTo(C* to, int64_t stride, int64_t count, bool first) const {
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
#pragma unroll
      for (int j = 0; j < RowPack<T>::kSize; ++j) {
        if (j >= count) continue;
        C& sum = to[vector * stride + j];
        sum = first ? values[vector][j] : sum + values[vector][j];
      }
    }
  }

  C values[kVectors][RowPack<T>::kSize] = {};
};

// dx and, of each block's rows, dw and db, to partials [block, kVectors, n].
// Two blocks of 256 threads to a processor leave a thread 128 registers. With bf16 x and dy take 32 of them,
// and dw and db 64, in float; with f32 both take 32.
template <class T, int kVectors, class Threads>
__global__ void __launch_bounds__(Threads::kBlock, 2)
    NormBackwardKernel(NormOperands<T> of, DeviceRows<T> dx, int64_t num_rows, int64_t block_rows,
                       WideOf<T>* partials) {
  using C = WideOf<T>;
  constexpr int kGroups = Threads::kBlock / Threads::kSize;
  constexpr int kColumns = Threads::kSize * Threads::kHeld * RowPack<T>::kSize;
  const Threads threads;
  const int group = static_cast<int>(threadIdx.x) / Threads::kSize;
  const int64_t begin = blockIdx.x * block_rows;
  const int64_t end = begin + block_rows < num_rows ? begin + block_rows : num_rows;
  WeightSums<T, kVectors> sums[Threads::kHeld];
  for (int64_t row = begin + group; row < end; row += kGroups) {
    const HeldRow<T, Threads> x(threads, of.x[row], of.n);
    const HeldRow<T, Threads> dy(threads, of.dy[row], of.n);
    const NormGradNumbers<C> k = OwnNumbers(threads, of, x, dy, row);
    WriteGrad(threads, of, x, dy, k, dx[row]);
    ForEachPack<T>(threads, of.n,
                   [&](int p, int64_t i) { sums[p].Add(x.At(p, i), dy.At(p, i), k.mean, k.rstd); });
  }
  C* const to = partials + blockIdx.x * kVectors * of.n;
  if constexpr (kGroups == 1) {
    ForEachPack<T>(threads, of.n,
                   [&](int p, int64_t i) { sums[p].AddTo(to + i, of.n, of.n - i, /*first=*/true); });
  } else {
    // One warp after the other, so that the order is always the same.
    __shared__ C total[kVectors * kColumns];
    for (int turn = 0; turn < kGroups; ++turn) {
      if (group == turn) {
        ForEachPack<T>(threads, of.n,
                       [&](int p, int64_t i) { sums[p].AddTo(total + i, kColumns, of.n - i, turn == 0); });
      }
      __syncthreads();
    }
    for (int64_t i = threadIdx.x; i < kVectors * of.n; i += Threads::kBlock) {
      to[i] = total[i / of.n * kColumns + i % of.n];
    }
  }
}

// The same without dx, for rows of any length: a thread takes a pack of columns, a block of threads several
// rows at once.
// A warp reads 32 packs, 512 bytes, of one row. The subrows go through shared memory one after the other, so
// that sums have one order.
template <class T, int kVectors>
__global__ void __launch_bounds__(kLanes* kSubrows)
    NormWeightGradKernel(NormOperands<T> of, int64_t num_rows, int64_t block_rows, WideOf<T>* partials) {
  using C = WideOf<T>;
  constexpr int kColumns = kLanes * RowPack<T>::kSize;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{blockIdx.x} * kColumns;
  const int64_t i = first + lane * RowPack<T>::kSize;
  const int64_t begin = blockIdx.y * block_rows;
  const int64_t end = begin + block_rows < num_rows ? begin + block_rows : num_rows;
  WeightSums<T, kVectors> sums;
#pragma unroll 4
  for (int64_t row = begin + threadIdx.y; row < end; row += kSubrows) {
    if (i >= of.n) continue;
    sums.Add(LoadPack(of.x[row], i, of.n), LoadPack(of.dy[row], i, of.n), NumberAt(of.mean, row),
             of.rstd[row]);
  }
  __shared__ C total[kVectors * kColumns];
  for (int turn = 0; turn < kSubrows; ++turn) {
    if (static_cast<int>(threadIdx.y) == turn) {
      sums.AddTo(total + lane * RowPack<T>::kSize, kColumns, of.n - i, turn == 0);
    }
    __syncthreads();
  }
  C* const to = partials + (blockIdx.y * kVectors) * of.n;
  for (int c = static_cast<int>(threadIdx.y) * kLanes + lane; c < kVectors * kColumns;
       c += kLanes * kSubrows) {
    const int64_t column = first + c % kColumns;
    if (column < of.n) to[c / kColumns * of.n + column] = total[c];
  }
}

// dw and db: the sums over blocks of partials [num_blocks, kVectors, n].
// In double, since what arrives are sums of many rows: a float would lose digits that each block still has.
template <class T>
__global__ void AddBlocksKernel(const WideOf<T>* partials, int64_t num_blocks, int64_t n, T* dw, T* db) {
  const int64_t num_sums = db == nullptr ? n : 2 * n;
  const int64_t i = int64_t{blockIdx.x} * kLanes + threadIdx.x;
  double sum = 0;
  if (i < num_sums) {
#pragma unroll 4
    for (int64_t block = threadIdx.y; block < num_blocks; block += kSubrows) {
      sum += static_cast<double>(partials[block * num_sums + i]);
    }
  }
  __shared__ double totals[kSubrows][kLanes];
  totals[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= num_sums) return;
  for (int subrow = 1; subrow < kSubrows; ++subrow) sum += totals[subrow][threadIdx.x];
  (i < n ? dw[i] : db[i - n]) = static_cast<T>(static_cast<WideOf<T>>(sum));
}

// Rows and vectors of a norm as kernels take them. Keeps what they point to while the call issues its work.
template <class T>
struct BackwardOperands {
  using C = WideOf<T>;

  BackwardOperands(const NormTensors& norm, KernelContext& context)
      : x(norm.x, context),
        dy(norm.dy, context),
        w(norm.w, context),
        mean(norm.mean, context),
        rstd(norm.rstd, context) {}

  NormOperands<T> get() const {
    return {x.rows<T>(), dy.rows<T>(), w.data(), mean.data(), rstd.data(), x.num_columns()};
  }

  RowTensor x, dy;
  PackedNumbers<T> w;
  PackedNumbers<C> mean, rstd;
};

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class C>
Tensor EmptyPartials(const KernelCallBase& call, int64_t num_blocks, int64_t num_sums) {
  return Tensor::Empty(call.context.allocator, kDTypeOf<C>, {num_blocks, num_sums});
}

// Eight warps to a block instead of RowOfWarp's four: a block leaves one row of partial sums, so as many
// warps leave half as many rows to the second kernel.
using Warps = RowThreads<kWarpSize, 256, RowOfWarp::kHeld>;

template <class T, int kVectors>
void Backward(const NormTensors& norm, const KernelCallBase& call) {
  using C = WideOf<T>;
  constexpr int64_t kPack = RowPack<T>::kSize;
  const CudaStreamRef stream = KernelStream(call);
  const BackwardOperands<T> operands(norm, call.context);
  const NormOperands<T> of = operands.get();
  const int64_t num_rows = operands.x.num_rows();
  if (of.n == 0) return;
  Tensor partials;
  int64_t num_blocks = 0;
  // Of blocks of `block_rows` rows each.
  const auto allocate = [&](int64_t block_rows) {
    num_blocks = CeilDivide(num_rows, block_rows);
    partials = EmptyPartials<C>(call, num_blocks, kVectors * of.n);
    return partials.data<C>();
  };
  const auto fused_by = [&](auto threads) {
    using Threads = decltype(threads);
    const int64_t block_rows =
        std::max<int64_t>(Threads::kBlock / Threads::kSize, CeilDivide(num_rows, kMostBlocks));
    C* const sums = allocate(block_rows);
    if (num_blocks == 0) return;
    LaunchCuda(stream, {.blocks = static_cast<unsigned>(num_blocks), .threads = Threads::kBlock},
               NormBackwardKernel<T, kVectors, Threads>, of, OutputRows<T>(norm.dx, of.n), num_rows,
               block_rows, sums);
  };
  const auto fused = [&](auto threads) {
    const bool whole = of.LieInPacks() && PacksAreAligned(OutputRows<T>(norm.dx, of.n));
    whole ? fused_by(typename decltype(threads)::Whole()) : fused_by(threads);
  };
  const int64_t packs = CeilDivide(of.n, kPack);
  // Where a row fits in registers, x and dy are read once for dx, dw and db. Longer rows would be read again
  // for dx in any case, and their dw and db have no room: columns go by a kernel of their own.
  if (norm.dx.defined() && packs <= Warps::kSize * Warps::kHeld) {
    fused(Warps());
  } else if (norm.dx.defined() && packs <= RowOfBlock::kSize * RowOfBlock::kHeld) {
    fused(RowOfBlock());
  } else {
    if (norm.dx.defined()) {
      LaunchRows(stream, num_rows, of.n, NormGradRow<T>{of, nullptr, nullptr, OutputRows<T>(norm.dx, of.n)});
    }
    const int64_t column_blocks = CeilDivide(packs, kLanes);
    // Some four rows or more for each subrow of a block, and no more blocks than fill a GPU.
    const int64_t most_blocks =
        std::max<int64_t>(1, std::min(kColumnBlocks / column_blocks, CeilDivide(num_rows, 4 * kSubrows)));
    const int64_t block_rows = std::max<int64_t>(1, CeilDivide(num_rows, most_blocks));
    C* const sums = allocate(block_rows);
    if (num_blocks > 0) {
      LaunchCuda(stream,
                 {.blocks = dim3(static_cast<unsigned>(column_blocks), static_cast<unsigned>(num_blocks)),
                  .threads = dim3(kLanes, kSubrows)},
                 NormWeightGradKernel<T, kVectors>, of, num_rows, block_rows, sums);
    }
  }
  LaunchCuda(stream,
             {.blocks = static_cast<unsigned>(CeilDivide(kVectors * of.n, kLanes)),
              .threads = dim3(kLanes, kSubrows)},
             AddBlocksKernel<T>, partials.data<C>(), num_blocks, of.n, norm.dw.data<T>(),
             DataOrNull<T>(norm.db));
}

// y; the statistics are given, or written.
template <class T, bool kGiven>
void Forward(const NormTensors& norm, double eps, const KernelCallBase& call) {
  using C = WideOf<T>;
  const RowTensor x(norm.x, call.context);
  const PackedNumbers<T> w(norm.w, call.context);
  const PackedNumbers<T> b(norm.b, call.context);
  const auto statistic = [&](const Tensor& tensor) {
    return kGiven && tensor.defined() ? PackedTensor(tensor, call.context) : tensor;
  };
  const Tensor mean = statistic(norm.mean);
  const Tensor rstd = statistic(norm.rstd);
  LaunchRows(KernelStream(call), x.num_rows(), x.num_columns(),
             NormRow<T, kGiven>{x.rows<T>(), w.data(), b.data(), DataOrNull<C>(mean), rstd.data<C>(), eps,
                                OutputRows<T>(norm.y, x.num_columns()), x.num_columns()});
}

}  // namespace

void NormForwardOnGpu(const NormTensors& norm, double eps, const KernelCallBase& call) {
  VisitFloating(norm.x.dtype(), "norm",
                [&](auto tag) { Forward<typename decltype(tag)::type, /*kGiven=*/false>(norm, eps, call); });
}

void NormApplyOnGpu(const NormTensors& norm, const KernelCallBase& call) {
  VisitFloating(norm.x.dtype(), "norm_apply", [&](auto tag) {
    Forward<typename decltype(tag)::type, /*kGiven=*/true>(norm, /*eps=*/0, call);
  });
}

void NormBackwardOnGpu(const NormTensors& norm, const KernelCallBase& call) {
  VisitFloating(norm.x.dtype(), "norm_grad", [&](auto tag) {
    using T = typename decltype(tag)::type;
    norm.db.defined() ? Backward<T, 2>(norm, call) : Backward<T, 1>(norm, call);
  });
}

void NormGradMeansOnGpu(const NormTensors& norm, int64_t global_columns, const KernelCallBase& call) {
  VisitFloating(norm.x.dtype(), "norm_grad_means", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = WideOf<T>;
    const BackwardOperands<T> operands(norm, call.context);
    LaunchRows(KernelStream(call), operands.x.num_rows(), operands.x.num_columns(),
               NormGradMeansRow<T>{operands.get(), global_columns, DataOrNull<C>(norm.g_mean),
                                   norm.gn_mean.data<C>()});
  });
}

void NormGradApplyOnGpu(const NormTensors& norm, const KernelCallBase& call) {
  VisitFloating(norm.x.dtype(), "norm_grad_apply", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = WideOf<T>;
    const BackwardOperands<T> operands(norm, call.context);
    const PackedNumbers<C> g_mean(norm.g_mean, call.context);
    const PackedNumbers<C> gn_mean(norm.gn_mean, call.context);
    LaunchRows(KernelStream(call), operands.x.num_rows(), operands.x.num_columns(),
               NormGradRow<T>{operands.get(), g_mean.data(), gn_mean.data(),
                              OutputRows<T>(norm.dx, operands.x.num_columns())});
  });
}

}  // namespace weft
