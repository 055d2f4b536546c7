#ifndef WEFT_OPS_CUDA_BLOCKS_ROW_LOOP_H_
#define WEFT_OPS_CUDA_BLOCKS_ROW_LOOP_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "ops/cuda/blocks/reduce_block.h"
#include "ops/cuda/blocks/row_pack.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/convert_on_device.h"

namespace weft {

// Kernels that treat one row after the other. The threads that share a row are a warp, or a block for longer
// rows; each takes packs of neighbouring elements, in one order for any alignment, so that bits follow from
// the length alone. Rows that are not too long stay in registers from the first read to the last use.
//
// A kernel is a body, a struct passed by value:
//   struct Twice {
//     using Element = float;
//     template <class Threads>
//     __device__ void operator()(const Threads& threads, int64_t row) const {
//       const HeldRow<float, Threads> in(threads, x + row * n, n);
//       ForEachPack<float>(threads, n, [&](int p, int64_t i) { ... in.At(p, i) ... });
//     }
//     // May be left out. True: no pack that the body loads or writes is partial or unaligned (RowsLieInPacks).
//     bool LiesInPacks() const { return RowsLieInPacks<float>(n, DeviceRows<const float>{x, n}); }
//     const float* x; int64_t n;
//   };
//   LaunchRows(stream, num_rows, n, Twice{x, n});

// The threads of a row: `kSize_` of them in blocks of `kBlock_`, each of which holds `kHeld_` packs of the
// row; 0: reads them anew each time. kWhole_: none of the body's packs is partial or unaligned.
template <int kSize_, int kBlock_, int kHeld_, bool kWhole_ = false>
struct RowThreads {
  static constexpr int kSize = kSize_;
  static constexpr int kBlock = kBlock_;
  static constexpr int kHeld = kHeld_;
  static constexpr bool kWhole = kWhole_;
  using Whole = RowThreads<kSize_, kBlock_, kHeld_, true>;

  __device__ int rank() const { return static_cast<int>(threadIdx.x) % kSize; }
  // Which of all the groups in the grid that share rows this is, and how many there are.
  __device__ int64_t group() const {
    return int64_t{blockIdx.x} * (kBlock / kSize) + static_cast<int>(threadIdx.x) / kSize;
  }
  __device__ int64_t num_groups() const { return int64_t{gridDim.x} * (kBlock / kSize); }

  template <class T>
  __device__ RowPack<T> Load(const T* row, int64_t i, int64_t n) const {
    return LoadPack<kWhole>(row, i, n);
  }

  // Of all threads' values, for each of them, in an order that follows from kSize.
  template <class V, class Combine>
  __device__ V Reduce(V value, const Combine& combine) const {
    if constexpr (kSize == kWarpSize) {
      return ReduceWarp(value, combine);
    } else {
      __shared__ V scratch[kMostWarps];
      return ReduceBlock(value, combine, scratch);
    }
  }
  template <class V>
  __device__ V Sum(V value) const {
    return Reduce(value, AddValues());
  }
};

// Up to 128 packs, up to 256, up to 1024, more.
// Four packs are 16 registers a row that is held, so a kernel may hold two rows and sums beside them; eight leave room for
// two rows. A warp per row needs no barrier; more than 1024 packs would leave too few registers for several blocks, and a row
// so long gives a block work enough to read it again, often from the second cache.
using RowOfWarp = RowThreads<kWarpSize, 128, 4>;
using LongRowOfWarp = RowThreads<kWarpSize, 128, 8>;
using RowOfBlock = RowThreads<256, 256, 4>;
using LongRow = RowThreads<512, 512, 0>;

// Calls visit(p, i) for the packs of a row of n elements that are this thread's: the p-th, of elements i, i +
// 1, ...; the last one of the row may reach beyond its end.
template <class T, class Threads, class Visit>
__device__ void ForEachPack(const Threads& threads, int64_t n, const Visit& visit) {
  constexpr int64_t kStep = int64_t{Threads::kSize} * RowPack<T>::kSize;
  const int64_t first = int64_t{threads.rank()} * RowPack<T>::kSize;
  if constexpr (Threads::kHeld > 0) {
#pragma unroll
    for (int p = 0; p < Threads::kHeld; ++p) {
      const int64_t i = first + p * kStep;
      if (i < n) visit(p, i);
    }
  } else {
#pragma unroll 4
    for (int64_t i = first; i < n; i += kStep) visit(0, i);
  }
}

// A row's packs, as this thread comes by them.
template <class T, class Threads>
class HeldRow {
 public:
  __device__ HeldRow(const Threads& threads, const T* row, int64_t n) : row_(row), n_(n) {
    if constexpr (Threads::kHeld > 0) {
      ForEachPack<T>(threads, n, [&](int p, int64_t i) { packs_[p] = threads.Load(row, i, n); });
    }
  }
  __device__ RowPack<T> At(int p, int64_t i) const {
    if constexpr (Threads::kHeld > 0) {
      return packs_[p];
    } else {
      return LoadPack<Threads::kWhole>(row_, i, n_);
    }
  }

 private:
  const T* row_;
  int64_t n_;
  RowPack<T> packs_[Threads::kHeld > 0 ? Threads::kHeld : 1];
};

// The sum, over the elements of a row, of value(j), j the place in the pack that visit(p, i) has before it:
//   SumOverPacks<T, C>(threads, n, [&](int p, int64_t i) { return [v = row.At(p, i)](int j) {...}; })
// A pack adds up in C, packs in double. For this thread alone: threads.Sum makes it the row's.
template <class T, class C, class Threads, class Visit>
__device__ double SumOverPacks(const Threads& threads, int64_t n, const Visit& visit) {
  double total = 0;
  ForEachPack<T>(threads, n, [&](int p, int64_t i) {
    const auto value = visit(p, i);
    C sum = 0;
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) {
      if (Threads::kWhole || i + j < n) sum += value(j);
    }
    total += static_cast<double>(sum);
  });
  return total;
}

// row[i] = T(value(j)), as above.
template <class T, class Threads, class Visit>
__device__ void WritePacks(const Threads& threads, T* row, int64_t n, const Visit& visit) {
  ForEachPack<T>(threads, n, [&](int p, int64_t i) {
    const auto value = visit(p, i);
    RowPack<T> pack;
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) pack.values[j] = ConvertOnDevice<T>(value(j));
    StorePack<Threads::kWhole>(pack, row, i, n);
  });
}

template <class Threads, class Body>
__global__ void __launch_bounds__(Threads::kBlock) RowKernel(int64_t num_rows, const Body body) {
  const Threads threads;
  for (int64_t row = threads.group(); row < num_rows; row += threads.num_groups()) body(threads, row);
}

// Calls function(threads) with the RowThreads for rows of n elements of T.
template <class T, class Function>
void VisitRowThreads(int64_t n, const Function& function) {
  const int64_t packs = (n + RowPack<T>::kSize - 1) / RowPack<T>::kSize;
  if (packs <= RowOfWarp::kSize * RowOfWarp::kHeld) {
    function(RowOfWarp());
  } else if (packs <= LongRowOfWarp::kSize * LongRowOfWarp::kHeld) {
    function(LongRowOfWarp());
  } else if (packs <= RowOfBlock::kSize * RowOfBlock::kHeld) {
    function(RowOfBlock());
  } else {
    function(LongRow());
  }
}

// A body that says whether its packs are whole: it is compiled for both.
template <class Body>
concept TellsOfPacks = requires(const Body& body) {
  body.LiesInPacks();
};

// Issues body(threads, row) for every row; nothing where there is none. n: the elements of a row.
template <class Body>
void LaunchRows(CudaStreamRef stream, int64_t num_rows, int64_t n, const Body& body) {
  if (num_rows == 0) return;
  const auto launch = [&](auto threads) {
    using Threads = decltype(threads);
    constexpr int64_t kMostBlocks = 1 << 30;
    constexpr int64_t kRows = Threads::kBlock / Threads::kSize;  // a block
    const int64_t blocks = std::min(kMostBlocks, (num_rows + kRows - 1) / kRows);
    LaunchCuda(stream, {.blocks = static_cast<unsigned>(blocks), .threads = Threads::kBlock},
               RowKernel<Threads, Body>, num_rows, body);
  };
  VisitRowThreads<typename Body::Element>(n, [&](auto threads) {
    if constexpr (TellsOfPacks<Body>) {
      if (body.LiesInPacks()) return launch(typename decltype(threads)::Whole());
    }
    launch(threads);
  });
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_ROW_LOOP_H_
