#ifndef WEFT_OPS_CUDA_BLOCKS_ROW_EXP_SUM_H_
#define WEFT_OPS_CUDA_BLOCKS_ROW_EXP_SUM_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/blocks/row_loop.h"
#include "ops/cuda/blocks/row_math.h"
#include "ops/cuda/blocks/row_pack.h"

namespace weft {

// log sum exp of a row, taken apart so that differences of large numbers stay exact: max + log(sum). A nan of
// the row is in the sum.
template <class C>
struct RowExpSum {
  C max;
  double sum;

  __device__ double LogSum() const {
    if (sum != sum || max != -kInfinityOf<C>) return static_cast<double>(max) + log(sum);
    return static_cast<double>(max);
  }
};

// Of a row that lies in registers: its maximum, then the sum.
template <class T, class Threads>
__device__ RowExpSum<WideOf<T>> ExpSumOfHeldRow(const Threads& threads, const HeldRow<T, Threads>& row,
                                                int64_t n) {
  using C = WideOf<T>;
  constexpr C kNothing = -kInfinityOf<C>;
  C max = kNothing;
  ForEachPack<T>(threads, n, [&](int p, int64_t i) {
    const RowPack<T> pack = row.At(p, i);
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) {
      const C value = Threads::kWhole || i + j < n ? ConvertOnDevice<C>(pack.values[j]) : kNothing;
      if (value > max) max = value;  // not a nan
    }
  });
  max = threads.Reduce(max, MaxOfValues());
  const C shift = max == kNothing ? C(0) : max;
  const double sum = SumOverPacks<T, C>(threads, n, [&](int p, int64_t i) {
    return
        [pack = row.At(p, i), shift](int j) { return ExpFor<T>(ConvertOnDevice<C>(pack.values[j]) - shift); };
  });
  return {max, threads.Sum(sum)};
}

// In one pass over the row: each thread raises its shift where a pack is above it, and with it scales what it
// has.
template <class T, class Threads>
__device__ RowExpSum<WideOf<T>> ExpSumInOnePass(const Threads& threads, const HeldRow<T, Threads>& row,
                                                int64_t n) {
  using C = WideOf<T>;
  constexpr C kNothing = -kInfinityOf<C>;
  C max = kNothing;
  double sum = 0;
  ForEachPack<T>(threads, n, [&](int p, int64_t i) {
    const RowPack<T> pack = row.At(p, i);
    C values[RowPack<T>::kSize];
    C largest = max;
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) {
      values[j] = Threads::kWhole || i + j < n ? ConvertOnDevice<C>(pack.values[j]) : kNothing;
      if (values[j] > largest) largest = values[j];  // not a nan
    }
    if (largest > max) {
      sum *= static_cast<double>(ExpFor<T>(max - largest));
      max = largest;
    }
    const C shift = max == kNothing ? C(0) : max;
    C part = 0;
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) part += ExpFor<T>(values[j] - shift);
    sum += static_cast<double>(part);
  });
  const C row_max = threads.Reduce(max, MaxOfValues());
  if (row_max != kNothing) sum *= static_cast<double>(ExpFor<T>(max - row_max));
  return {row_max, threads.Sum(sum)};
}

template <class T, class Threads>
__device__ RowExpSum<WideOf<T>> ExpSumOfRow(const Threads& threads, const HeldRow<T, Threads>& row,
                                            int64_t n) {
  if constexpr (Threads::kHeld > 0) {
    return ExpSumOfHeldRow<T>(threads, row, n);
  } else {
    return ExpSumInOnePass<T>(threads, row, n);
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_ROW_EXP_SUM_H_
