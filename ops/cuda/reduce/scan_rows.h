#ifndef WEFT_OPS_CUDA_REDUCE_SCAN_ROWS_H_
#define WEFT_OPS_CUDA_REDUCE_SCAN_ROWS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/reduce_block.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/grid_loop.h"
#include "runtime/tensor/cuda/strided_loops.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Running totals along one dim. What runs is a struct passed by value:
//
//   using Element = ...;  using Total = ...;         // of the tensor; what totals are kept in
//   Total Start(int64_t row) const;                  // before the first element of a row
//   Total Nothing() const;                           // changes no total
//   Total Lift(Element) const;
//   Total Combine(Total, Total) const;               // associative but for rounding
//   void Emit(int64_t at, Total before, Total after) const;  // at: row-major in the whole
//
// Rows are numbered by their other indices, row-major. A block takes a row, tile by tile; rows that lie next
// to each other, and short ones, go a thread each. Bits follow from the shape and the order of the dims.

namespace scan_internal {

constexpr int kThreads = 256;
constexpr int kItems = 4;  // a thread

template <class R>
struct ScanSource {
  const typename R::Element* x;
  StridedLoops<2> rows;  // of x, and row-major
  int64_t n;
  int64_t x_stride;
  int64_t at_stride;
  bool reverse;
};

// The totals of the threads before this one, and of all, put together in their order.
// Shuffles within a warp (Hillis and Steele), then each thread adds the totals of the eight warps by itself:
// one barrier less than a warp that scans them for all.
template <class R>
struct BlockTotals {
  typename R::Total before;
  typename R::Total all;
};
template <class R>
__device__ BlockTotals<R> ScanBlock(const R& scan, typename R::Total own) {
  using Total = typename R::Total;
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ Total of_warps[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  Total through = own;
#pragma unroll
  for (int delta = 1; delta < kWarpSize; delta *= 2) {
    const Total earlier = __shfl_sync(0xffffffffu, through, lane >= delta ? lane - delta : lane);
    if (lane >= delta) through = scan.Combine(earlier, through);
  }
  const Total previous = __shfl_sync(0xffffffffu, through, lane > 0 ? lane - 1 : 0);
  if (lane == kWarpSize - 1) of_warps[warp] = through;
  __syncthreads();
  BlockTotals<R> totals = {scan.Nothing(), scan.Nothing()};
  for (int i = 0; i < kWarps; ++i) {
    if (i == warp) totals.before = totals.all;
    totals.all = scan.Combine(totals.all, of_warps[i]);
  }
  if (lane > 0) totals.before = scan.Combine(totals.before, previous);
  __syncthreads();
  return totals;
}

template <class R>
__global__ void __launch_bounds__(kThreads) ScanRowKernel(const R scan, const ScanSource<R> source) {
  using Total = typename R::Total;
  for (int64_t row = blockIdx.x; row < source.rows.count; row += gridDim.x) {
    int64_t offsets[2];
    source.rows.Offsets(row, offsets);
    Total carry = scan.Start(row);
    for (int64_t tile = 0; tile < source.n; tile += kThreads * kItems) {
      const int64_t first = tile + int64_t{threadIdx.x} * kItems;
      Total items[kItems];
      Total own = scan.Nothing();
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const int64_t i = source.reverse ? source.n - 1 - (first + j) : first + j;
        const bool inside = first + j < source.n;
        items[j] = inside ? scan.Lift(source.x[offsets[0] + i * source.x_stride]) : scan.Nothing();
        own = scan.Combine(own, items[j]);
      }
      const BlockTotals<R> totals = ScanBlock(scan, own);
      Total running = scan.Combine(carry, totals.before);
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        const Total before = running;
        running = scan.Combine(running, items[j]);
        const int64_t i = source.reverse ? source.n - 1 - (first + j) : first + j;
        if (first + j < source.n) scan.Emit(offsets[1] + i * source.at_stride, before, running);
      }
      carry = scan.Combine(carry, totals.all);
    }
  }
}

template <class R>
__global__ void ScanColumnsKernel(const R scan, const ScanSource<R> source) {
  ForEachOfGrid(source.rows.count, [&](int64_t row) {
    int64_t offsets[2];
    source.rows.Offsets(row, offsets);
    typename R::Total running = scan.Start(row);
#pragma unroll 4
    for (int64_t step = 0; step < source.n; ++step) {
      const int64_t i = source.reverse ? source.n - 1 - step : step;
      const typename R::Total before = running;
      running = scan.Combine(running, scan.Lift(source.x[offsets[0] + i * source.x_stride]));
      scan.Emit(offsets[1] + i * source.at_stride, before, running);
    }
  });
}

}  // namespace scan_internal

// Issues the scan of x (any strides) along `dim`, from its end with `reverse`.
template <class R>
void ScanAlong(const KernelCallBase& call, const Tensor& x, int dim, bool reverse, const R& scan) {
  using namespace scan_internal;  // NOLINT: of this header
  constexpr int64_t kShort = 16;
  constexpr int64_t kManyRows = 132 * 32;
  if (x.num_elements() == 0) return;
  Shape shape = x.shape();
  Shape strides[2] = {x.strides(), ContiguousStrides(x.shape())};
  ScanSource<R> source = {};
  source.x = x.data<typename R::Element>();
  source.n = shape[dim];
  source.x_stride = strides[0][dim];
  source.at_stride = strides[1][dim];
  source.reverse = reverse;
  shape.Remove(dim);
  for (Shape& of_operand : strides) of_operand.Remove(dim);
  source.rows = MakeStridedLoops(shape, strides);
  const int64_t num_rows = source.rows.count;
  if (source.n <= kShort || (source.x_stride != 1 && num_rows >= kManyRows)) {
    LaunchCuda(KernelStream(call), GridOver(num_rows), ScanColumnsKernel<R>, scan, source);
  } else {
    constexpr int64_t kMostBlocks = 1 << 30;
    LaunchCuda(KernelStream(call),
               {.blocks = static_cast<unsigned>(std::min(num_rows, kMostBlocks)), .threads = kThreads},
               ScanRowKernel<R>, scan, source);
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_REDUCE_SCAN_ROWS_H_
