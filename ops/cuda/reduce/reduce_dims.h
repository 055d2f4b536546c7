#ifndef WEFT_OPS_CUDA_REDUCE_REDUCE_DIMS_H_
#define WEFT_OPS_CUDA_REDUCE_REDUCE_DIMS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/reduce_block.h"
#include "ops/cuda/blocks/row_pack.h"
#include "ops/declare/reduced_dims.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/strided_loops.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Reductions over any dims of a tensor of any strides: one result for every index of the other dims, numbered
// row-major. What is reduced is a struct passed by value:
//
//   using Element = ...;                             // of the tensor
//   using State = ...;                               // trivial, at most 16 bytes
//   using Run = State;                               // a few elements of one thread; may be smaller
//   using Around = ...;                              // what a result reads once, before its elements
//   Around Of(int64_t result) const;
//   State NoState() const;  Run NoRun() const;
//   void Take(Run&, Element, int64_t index, const Around&) const;  // index: row-major over the reduced dims
//   void Absorb(State&, const Run&) const;
//   void Merge(State&, const State&) const;          // commutative, and associative but for rounding
//   void Write(int64_t result, const State&) const;
//
// Dims that lie together in memory are reduced by a warp or a block a result, others by a thread per column,
// next to each other. Long reductions are cut into parts, whose states wait in the workspace for a second
// kernel. Bits follow from the shape and the order of the dims in memory.

// What most have in common: nothing to read before, runs that are states.
template <class T, class S>
struct PlainReduction {
  using Element = T;
  using State = S;
  using Run = S;
  struct Around {};
  __device__ Around Of(int64_t) const { return {}; }
};

// What sums in double have in common; a run adds up in R. Left to say: Of, Take and Write.
template <class T, class R>
struct SumReduction {
  using Element = T;
  using State = double;
  using Run = R;
  __device__ double NoState() const { return 0; }
  __device__ R NoRun() const { return 0; }
  __device__ void Absorb(double& sum, R run) const { sum += static_cast<double>(run); }
  __device__ void Merge(double& sum, double other) const { sum += other; }
};

namespace reduce_internal {

template <class State>
__device__ State ShuffleState(const State& state, int mask) {
  constexpr int kWords = (sizeof(State) + 3) / 4;
  uint32_t words[kWords] = {};
  memcpy(words, &state, sizeof(State));
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
  State other;
  memcpy(&other, words, sizeof(State));
  return other;
}

// Of the first lane's thread alone is the result that of all.
template <class R>
__device__ void MergeWarp(const R& reduction, typename R::State& state) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) reduction.Merge(state, ShuffleState(state, mask));
}

template <class Loops>
__device__ int64_t OffsetIn(const Loops& loops, int64_t index) {
  if (loops.num_loops <= 1) return loops.num_loops == 0 ? 0 : index * loops.strides[0][0];
  int64_t at[1];
  loops.Offsets(index, at);
  return at[0];
}

// What both kernels of the first stage read and write.
template <class R>
struct Source {
  const typename R::Element* x;
  StridedLoops<1> kept;
  StridedLoops<1> reduced;
  int64_t part_size;
  int64_t num_parts;
  typename R::State* partials;  // [num_parts, results]; null if there is one part

  __device__ void Finish(const R& reduction, int64_t result, int64_t part,
                         const typename R::State& state) const {
    if (partials == nullptr) {
      reduction.Write(result, state);
    } else {
      partials[part * kept.count + result] = state;
    }
  }
};

// kThreads share a result's part: a warp, or a block.
template <int kThreads, class R>
__global__ void ReduceRowsKernel(const R reduction, const Source<R> source, bool packs) {
  using T = typename R::Element;
  using State = typename R::State;
  constexpr int kSize = RowPack<T>::kSize;
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ uint4 scratch[(kWarps * sizeof(State) + sizeof(uint4) - 1) / sizeof(uint4)];
  State* const states = reinterpret_cast<State*>(scratch);
  const int rank = static_cast<int>(threadIdx.x) % kThreads;
  const int64_t groups = blockDim.x / kThreads;
  const int64_t units = source.kept.count * source.num_parts;
  const bool dense = source.reduced.num_loops == 1 && source.reduced.strides[0][0] == 1;
  for (int64_t unit = blockIdx.x * groups + threadIdx.x / kThreads; unit < units;
       unit += gridDim.x * groups) {
    const int64_t result = source.num_parts == 1 ? unit : unit / source.num_parts;
    const int64_t part = unit - result * source.num_parts;
    const T* const x = source.x + OffsetIn(source.kept, result);
    const auto around = reduction.Of(result);
    const int64_t begin = part * source.part_size;
    const int64_t end = std::min(begin + source.part_size, source.reduced.count);
    State state = reduction.NoState();
    for (int64_t i = begin + rank * kSize; i < end; i += kThreads * kSize) {
      typename R::Run run = reduction.NoRun();
      if (dense || packs) {
        const RowPack<T> pack =
            dense ? LoadPack(x, i, end) : LoadPack(x + OffsetIn(source.reduced, i), 0, kSize);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          if (i + j < end) reduction.Take(run, pack.values[j], i + j, around);
        }
      } else {
        // Not unrolled: finding an element takes many instructions.
#pragma unroll 1
        for (int64_t j = i; j < i + kSize && j < end; ++j) {
          reduction.Take(run, x[OffsetIn(source.reduced, j)], j, around);
        }
      }
      reduction.Absorb(state, run);
    }
    MergeWarp(reduction, state);
    if constexpr (kWarps > 1) {
      if (rank % kWarpSize == 0) states[rank / kWarpSize] = state;
      __syncthreads();
      if (rank == 0) {
        for (int warp = 1; warp < kWarps; ++warp) reduction.Merge(state, states[warp]);
      }
      __syncthreads();
    }
    if (rank == 0) source.Finish(reduction, result, part, state);
  }
}

constexpr int kColumnThreads = 256;

// Merges the states of a block's rows of threads into those of row 0: one row after the other, so that the
// order is always the same. `shared`: this column of threads' own.
template <int kColumns, class R>
__device__ void MergeThreadRows(const R& reduction, typename R::State* shared,
                                typename R::State (&states)[kColumns]) {
  for (unsigned turn = 1; turn < blockDim.y; ++turn) {
    if (threadIdx.y == turn) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) shared[c] = states[c];
    }
    __syncthreads();
    if (threadIdx.y == 0) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) reduction.Merge(states[c], shared[c]);
    }
    __syncthreads();
  }
}

// A thread takes kColumns neighbouring results, and every blockDim.y-th index of a part.
template <int kColumns, class R>
__global__ void __launch_bounds__(kColumnThreads)
    ReduceColumnsKernel(const R reduction, const Source<R> source) {
  using T = typename R::Element;
  using State = typename R::State;
  // Elements of a run, whose loads are in flight together: by T alone, as the bits.
  constexpr int kRunRows = RowPack<T>::kSize > 4 ? 4 : 8;
  constexpr int kMostLanes = 32;
  __shared__ uint4 scratch[(kMostLanes * kColumns * sizeof(State) + sizeof(uint4) - 1) / sizeof(uint4)];
  State* const shared = reinterpret_cast<State*>(scratch) + threadIdx.x % kMostLanes * kColumns;
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kColumns;
  const bool inside = first < source.kept.count;
  const T* const x = source.x + (inside ? OffsetIn(source.kept, first) : 0);
  const int64_t begin = blockIdx.y * source.part_size;
  const int64_t end = inside ? std::min(begin + source.part_size, source.reduced.count) : begin;
  State states[kColumns];
  typename R::Around around[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    states[c] = reduction.NoState();
    if (inside) around[c] = reduction.Of(first + c);
  }
  const int64_t step = blockDim.y;
  const bool one_loop = source.reduced.num_loops <= 1;
  for (int64_t row = begin + threadIdx.y; row < end; row += kRunRows * step) {
    typename R::Run runs[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) runs[c] = reduction.NoRun();
    const auto take = [&](int64_t i, int64_t offset) {
      if constexpr (kColumns == 1) {
        reduction.Take(runs[0], x[offset], i, around[0]);
      } else {
        const RowPack<T> pack = *reinterpret_cast<const RowPack<T>*>(x + offset);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) reduction.Take(runs[c], pack.values[c], i, around[c]);
      }
    };
    if (one_loop) {
#pragma unroll
      for (int u = 0; u < kRunRows; ++u) {
        const int64_t i = row + u * step;
        if (i < end) take(i, i * source.reduced.strides[0][0]);
      }
    } else {
      // Not unrolled: finding an element takes many instructions.
#pragma unroll 1
      for (int u = 0; u < kRunRows; ++u) {
        const int64_t i = row + u * step;
        if (i < end) take(i, OffsetIn(source.reduced, i));
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) reduction.Absorb(states[c], runs[c]);
  }
  MergeThreadRows<kColumns>(reduction, shared, states);
  if (threadIdx.y != 0 || !inside) return;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) source.Finish(reduction, first + c, blockIdx.y, states[c]);
}

// Lanes take neighbouring results, whose partials lie side by side; rows of threads share the parts.
constexpr int kMergeLanes = 32;
constexpr int kMergeRows = 8;

// The second stage: of every result the states of its parts.
template <class R>
__global__ void MergePartsKernel(const R reduction, const typename R::State* partials, int64_t num_parts,
                                 int64_t num_results) {
  using State = typename R::State;
  __shared__ uint4 scratch[(kMergeLanes * kMergeRows * sizeof(State) + sizeof(uint4) - 1) / sizeof(uint4)];
  State* const states = reinterpret_cast<State*>(scratch);
  const int64_t result = int64_t{blockIdx.x} * kMergeLanes + threadIdx.x;
  State state = reduction.NoState();
  if (result < num_results) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < num_parts; part += kMergeRows) {
      reduction.Merge(state, partials[part * num_results + result]);
    }
  }
  states[threadIdx.y * kMergeLanes + threadIdx.x] = state;
  __syncthreads();
  if (threadIdx.y != 0 || result >= num_results) return;
  for (int row = 1; row < kMergeRows; ++row) {
    reduction.Merge(state, states[row * kMergeLanes + threadIdx.x]);
  }
  reduction.Write(result, state);
}

// True if packs of `size` elements along the innermost loop are whole and lie on multiples of it, from a base
// that does; `inner`: the loops in which they lie, `outer`: the others.
inline bool HasWholePacks(const StridedLoops<1>& inner, const StridedLoops<1>& outer, int64_t size) {
  if (inner.num_loops == 0) return false;
  const int last = inner.num_loops - 1;
  bool whole = inner.strides[0][last] == 1 && inner.extents[last] % size == 0;
  for (int loop = 0; loop < last; ++loop) whole = whole && inner.strides[0][loop] % size == 0;
  for (int loop = 0; loop < outer.num_loops; ++loop) whole = whole && outer.strides[0][loop] % size == 0;
  return whole;
}

inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Parts that fill any GPU, of `units` that there are anyway, none of less than `least` elements.
inline int64_t NumParts(int64_t units, int64_t count, int64_t least) {
  // An H100's processors times the blocks of 256 threads that one holds: a constant, since asking the device
  // would make bits follow from its model.
  constexpr int64_t kBlocks = 132 * 8;
  return std::clamp<int64_t>(kBlocks / units, 1, std::max<int64_t>(1, count / least));
}

// The first stage in one of its forms: how it cuts, and its launch.
struct ReducePlan {
  bool columns = false;  // a thread per column; else a warp or block a result
  bool packs = false;    // 16 bytes an access
  int64_t part_size = 0;
  int64_t num_parts = 1;
  dim3 threads;  // of columns
};

template <class T>
ReducePlan MakeReducePlan(const T* x, const StridedLoops<1>& kept, const StridedLoops<1>& reduced) {
  constexpr int64_t kSize = RowPack<T>::kSize;
  constexpr int64_t kFewElements = 8;
  constexpr int64_t kRowPart = 8192;
  ReducePlan plan;
  const int last = kept.num_loops - 1;
  const bool beside = last >= 0 && kept.strides[0][last] == 1 && kept.extents[last] >= kFewElements;
  plan.columns =
      reduced.count > 0 && (reduced.count < kFewElements || (beside && !IsContiguousIn(reduced, 0)));
  const bool aligned = reinterpret_cast<uintptr_t>(x) % sizeof(RowPack<T>) == 0;
  if (plan.columns) {
    const int64_t lanes = CeilDivide(kept.count, kSize);
    const unsigned width = reduced.count < kFewElements ? 128 : lanes <= 8 ? 8 : 32;
    plan.threads = dim3(width, reduced.count < kFewElements ? 1 : kColumnThreads / width);
    plan.num_parts = NumParts(CeilDivide(lanes, width), reduced.count, 8 * int64_t{plan.threads.y});
    plan.part_size = CeilDivide(reduced.count, plan.num_parts);
    plan.packs = aligned && HasWholePacks(kept, reduced, kSize);
  } else {
    plan.num_parts = NumParts(kept.count, reduced.count, kRowPart);
    plan.part_size = CeilDivide(CeilDivide(reduced.count, plan.num_parts), kSize) * kSize;
    plan.packs = aligned && HasWholePacks(reduced, kept, kSize);
  }
  if (plan.part_size > 0) plan.num_parts = CeilDivide(reduced.count, plan.part_size);
  return plan;
}

template <class R>
void LaunchFirstStage(CudaStreamRef stream, const R& reduction, const Source<R>& source,
                      const ReducePlan& plan) {
  using T = typename R::Element;
  if (!plan.columns) {
    constexpr int64_t kMostBlocks = 1 << 30;
    constexpr int64_t kBlock = 256;
    constexpr int64_t kOfWarp = 4 * kWarpSize * RowPack<T>::kSize;
    const bool warps = std::min(plan.part_size, source.reduced.count) <= kOfWarp;
    const int64_t units = source.kept.count * plan.num_parts;
    const int64_t blocks = std::min(kMostBlocks, warps ? CeilDivide(units, kBlock / kWarpSize) : units);
    LaunchCuda(stream, {.blocks = static_cast<unsigned>(blocks), .threads = kBlock},
               warps ? ReduceRowsKernel<kWarpSize, R> : ReduceRowsKernel<kBlock, R>, reduction, source,
               plan.packs);
    return;
  }
  constexpr int kSize = RowPack<T>::kSize;
  const int64_t blocks = CeilDivide(source.kept.count, int64_t{plan.threads.x} * (plan.packs ? kSize : 1));
  LaunchCuda(stream,
             {.blocks = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(plan.num_parts)),
              .threads = plan.threads},
             plan.packs ? ReduceColumnsKernel<kSize, R> : ReduceColumnsKernel<1, R>, reduction, source);
}

}  // namespace reduce_internal

// Issues the reduction of `dims` of x, whose elements are R::Element. Of nothing, results are NoState.
template <class R>
void ReduceAlong(const KernelCallBase& call, const Tensor& x, DimMask dims, const R& reduction) {
  using T = typename R::Element;
  Shape kept_shape, kept_strides, reduced_shape, reduced_strides;
  for (int dim = 0; dim < x.ndim(); ++dim) {
    (HasDim(dims, dim) ? reduced_shape : kept_shape).push_back(x.shape()[dim]);
    (HasDim(dims, dim) ? reduced_strides : kept_strides).push_back(x.strides()[dim]);
  }
  reduce_internal::Source<R> source = {x.data<T>(),
                                       MakeStridedLoops(kept_shape, {kept_strides}),
                                       MakeStridedLoops(reduced_shape, {reduced_strides}),
                                       /*part_size=*/0,
                                       /*num_parts=*/1,
                                       /*partials=*/nullptr};
  if (source.kept.count == 0) return;
  const CudaStreamRef stream = KernelStream(call);
  const auto plan = reduce_internal::MakeReducePlan(source.x, source.kept, source.reduced);
  source.part_size = plan.part_size;
  source.num_parts = plan.num_parts;
  Tensor partials;
  if (plan.num_parts > 1) {
    const int64_t bytes =
        plan.num_parts * source.kept.count * static_cast<int64_t>(sizeof(typename R::State));
    partials = Tensor::Empty(call.context.allocator, DType::kU8, {bytes});
    source.partials = static_cast<typename R::State*>(partials.data());
  }
  reduce_internal::LaunchFirstStage(stream, reduction, source, plan);
  if (plan.num_parts == 1) return;
  const int64_t blocks = reduce_internal::CeilDivide(source.kept.count, reduce_internal::kMergeLanes);
  LaunchCuda(stream,
             {.blocks = static_cast<unsigned>(blocks),
              .threads = dim3(reduce_internal::kMergeLanes, reduce_internal::kMergeRows)},
             reduce_internal::MergePartsKernel<R>, reduction, source.partials, source.num_parts,
             source.kept.count);
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_REDUCE_REDUCE_DIMS_H_
