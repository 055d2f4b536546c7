#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/many_tensors.h"
#include "ops/cuda/blocks/reduce_block.h"
#include "ops/cuda/blocks/row_pack.h"
#include "ops/cuda/reduce/sum_along.h"
#include "ops/op/kernel.h"
#include "ops/reduce/reduce.h"

namespace weft {
namespace {

// Contiguous tensors go through two kernels, however many there are: one sums every chunk of every tensor,
// the other every tensor's chunks. A tensor's bits follow from its own extents, so that one alone has those
// that it has among others.

// The sum of a thread's squares in the chunk. `kDense`: the chunk is whole and aligned.
// All loads of a turn come before the first sum, so that a thread waits once for kAhead accesses. In a dense
// chunk every access is whole, so loads check no bounds. Elsewhere LoadPack gives 0 beyond the end, which
// adds nothing: both forms have the same bits.
template <bool kDense, class T>
__device__ double SquaresOfThread(const T* x, const ManyChunk& chunk) {
  using C = WideOf<T>;
  constexpr int kSize = RowPack<T>::kSize;
  constexpr int kAhead = 4;  // accesses that are in flight together
  const int64_t step = int64_t{blockDim.x} * kSize;
  double sum = 0;
  for (int64_t i = chunk.begin + int64_t{threadIdx.x} * kSize; i < chunk.end; i += kAhead * step) {
    RowPack<T> packs[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if constexpr (kDense) {
        packs[a] = *reinterpret_cast<const RowPack<T>*>(x + i + a * step);
      } else {
        packs[a] = LoadPack(x, i + a * step, chunk.end);
      }
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      C run = 0;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const C value = static_cast<C>(packs[a].values[j]);
        run += value * value;
      }
      sum += static_cast<double>(run);
    }
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kManyThreads)
    SumChunksKernel(const ManyTensors<const T*> tensors, double* sums) {
  __shared__ double scratch[kMostWarps];
  const ManyChunk chunk = tensors.ChunkOf(static_cast<int>(blockIdx.x));
  const T* const x = tensors.items[chunk.tensor];
  const bool dense = chunk.end - chunk.begin == tensors.kChunk && IsPackAligned(x);
  const double own = dense ? SquaresOfThread<true>(x, chunk) : SquaresOfThread<false>(x, chunk);
  const double sum = ReduceBlock(own, AddValues(), scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// A tensor's result, and where the sums of its chunks are.
template <class Y>
struct ChunkSums {
  Y* y;
  int first;
  int count;
};
template <class Y>
struct ChunkSumsTable {
  static constexpr int kMost = kTableBytes / static_cast<int>(sizeof(ChunkSums<Y>));
  ChunkSums<Y> tensors[kMost];
};

// A block a tensor.
// The table goes by value among the kernel's parameters: a copy to the device would need memory on the host
// that stays until the stream has reached it.
template <class Y>
__global__ void __launch_bounds__(kManyThreads)
    AddChunksKernel(const ChunkSumsTable<Y> table, const double* sums) {
  __shared__ double scratch[kMostWarps];
  const ChunkSums<Y> tensor = table.tensors[blockIdx.x];
  double own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < tensor.count; i += kManyThreads)
    own += sums[tensor.first + i];
  const double sum = ReduceBlock(own, AddValues(), scratch);
  if (threadIdx.x == 0) *tensor.y = static_cast<Y>(sum);
}

// Of tensors of T.
// Each chunk's sum has a place of its own in the workspace. An atomic add to the tensor's result would save
// the second kernel, and give other bits in every run.
template <class T>
void SumSquaresOf(absl::Span<const KernelCallBase* const> calls) {
  using Y = WideOf<T>;
  const CudaStreamRef stream = KernelStream(*calls[0]);
  std::vector<ChunkSums<Y>> results;
  int num_chunks = 0;
  for (const KernelCallBase* call : calls) {
    constexpr int64_t kChunk = ManyTensors<const T*>::kChunk;
    const int count = static_cast<int>((call->inputs[0].num_elements() + kChunk - 1) / kChunk);
    results.push_back({call->outputs[0].data<Y>(), num_chunks, count});
    num_chunks += count;
  }
  const Tensor sums = Tensor::Empty(calls[0]->context.allocator, DType::kF64, {num_chunks});
  // Launches follow each other in one stream, so each gets the part of the workspace behind the last one's.
  double* next = sums.data<double>();
  const auto launch = [&](const ManyTensors<const T*>& tensors) {
    LaunchCuda(stream, tensors.Grid(), SumChunksKernel<T>, tensors, next);
    next += tensors.num_chunks;
  };
  ManyLaunches<const T*, decltype(launch)> launches(launch);
  for (const KernelCallBase* call : calls) {
    launches.Add(call->inputs[0].num_elements(), call->inputs[0].template data<T>());
  }
  launches.Finish();
  for (size_t begin = 0; begin < results.size(); begin += ChunkSumsTable<Y>::kMost) {
    const size_t size = std::min<size_t>(results.size() - begin, ChunkSumsTable<Y>::kMost);
    ChunkSumsTable<Y> table;
    std::copy_n(results.begin() + static_cast<std::ptrdiff_t>(begin), size, table.tensors);
    LaunchCuda(stream, {.blocks = static_cast<unsigned>(size), .threads = kManyThreads}, AddChunksKernel<Y>,
               table, sums.data<double>());
  }
}

void SumSquaresOfAll(absl::Span<const KernelCallBase> calls) {
  // Two launches or more for each dtype, not for each tensor; one that is not contiguous goes by itself.
  std::map<DType, std::vector<const KernelCallBase*>> by_dtype;
  for (const KernelCallBase& call : calls) {
    const Tensor& x = call.inputs[0];
    if (x.IsContiguous()) {
      by_dtype[x.dtype()].push_back(&call);
    } else {
      SumAlong(call, x, AllDims(x.ndim()), call.outputs[0], {.square = true});
    }
  }
  for (const auto& [dtype, alike] : by_dtype) {
    VisitFloating(dtype, "sum_squares", [&](auto tag) { SumSquaresOf<typename decltype(tag)::type>(alike); });
  }
}

void SumSquares(const KernelCall<NoAttributes, NoScalars>& call) {
  SumSquaresOfAll(absl::MakeConstSpan(static_cast<const KernelCallBase*>(&call), 1));
}

const RegisterKernel kRegister(kSumSquares, DeviceType::kCuda, SumSquares);
const RegisterBatchKernel kRegisterBatch(kSumSquares, DeviceType::kCuda, SumSquaresOfAll);

}  // namespace
}  // namespace weft
