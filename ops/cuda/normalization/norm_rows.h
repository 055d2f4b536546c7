#ifndef WEFT_OPS_CUDA_NORMALIZATION_NORM_ROWS_H_
#define WEFT_OPS_CUDA_NORMALIZATION_NORM_ROWS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/blocks/row_loop.h"
#include "ops/cuda/blocks/row_tensors.h"

namespace weft {

// What the kernels of layer_norm and rms_norm do with a row; see norm_passes.h.

template <class C>
__device__ C MeanOf(double sum, int64_t n) {
  return n == 0 ? C(0) : static_cast<C>(sum / static_cast<double>(n));
}

// y; the statistics are computed, or with kGiven read. Without `mean`, a mean of 0.
template <class T, bool kGiven>
struct NormRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    const HeldRow<T, Threads> in(threads, x[row], n);
    C row_mean = 0;
    C row_rstd;
    if constexpr (kGiven) {
      row_mean = NumberAt(mean, row);
      row_rstd = rstd[row];
    } else {
      if (mean != nullptr) {
        const double sum = SumOverPacks<T, C>(threads, n, [&](int p, int64_t i) {
          return [v = in.At(p, i)](int j) { return ConvertOnDevice<C>(v.values[j]); };
        });
        row_mean = MeanOf<C>(threads.Sum(sum), n);
      }
      double squares = SumOverPacks<T, C>(threads, n, [&](int p, int64_t i) {
        return [v = in.At(p, i), row_mean](int j) {
          const C centered = ConvertOnDevice<C>(v.values[j]) - row_mean;
          return centered * centered;
        };
      });
      squares = threads.Sum(squares);
      row_rstd = static_cast<C>(1 / sqrt((n == 0 ? 0 : squares / static_cast<double>(n)) + eps));
      if (threads.rank() == 0) {
        if (mean != nullptr) mean[row] = row_mean;
        rstd[row] = row_rstd;
      }
    }
    WritePacks(threads, y[row], n, [&](int p, int64_t i) {
      const RowPack<T> bias = b == nullptr ? RowPack<T>() : threads.Load(b, i, n);
      return [=, this, v = in.At(p, i), weight = threads.Load(w, i, n)](int j) {
        const C scaled =
            (ConvertOnDevice<C>(v.values[j]) - row_mean) * row_rstd * ConvertOnDevice<C>(weight.values[j]);
        return b == nullptr ? scaled : scaled + ConvertOnDevice<C>(bias.values[j]);
      };
    });
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(n, x, y, w, b); }

  DeviceRows<const T> x;
  const T* w;
  const T* b;
  C* mean;  // written unless given
  C* rstd;
  double eps;
  DeviceRows<T> y;
  int64_t n;
};

// The operands of backward rows.
template <class T>
struct NormOperands {
  using C = WideOf<T>;

  bool LieInPacks() const { return RowsLieInPacks<T>(n, x, dy, w); }

  DeviceRows<const T> x;
  DeviceRows<const T> dy;
  const T* w;
  const C* mean;
  const C* rstd;
  int64_t n;
};

// What a row's gradient takes beside its elements.
template <class C>
struct NormGradNumbers {
  C mean;
  C rstd;
  C g_mean;
  C gn_mean;
};

// The thread's part of sum g and sum g * (x - mean), g = dy * w.
struct NormGradSums {
  double g = 0;
  double g_centered = 0;
};
template <class T, class Threads>
__device__ NormGradSums GradSumsOf(const Threads& threads, const NormOperands<T>& of,
                                   const HeldRow<T, Threads>& x, const HeldRow<T, Threads>& dy,
                                   WideOf<T> mean) {
  using C = WideOf<T>;
  NormGradSums sums;
  ForEachPack<T>(threads, of.n, [&](int p, int64_t i) {
    const RowPack<T> v = x.At(p, i), d = dy.At(p, i), weight = threads.Load(of.w, i, of.n);
    C g_sum = 0;
    C centered_sum = 0;
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) {
      if (!Threads::kWhole && i + j >= of.n) continue;
      const C g = ConvertOnDevice<C>(d.values[j]) * ConvertOnDevice<C>(weight.values[j]);
      g_sum += g;
      centered_sum += g * (ConvertOnDevice<C>(v.values[j]) - mean);
    }
    sums.g += static_cast<double>(g_sum);
    sums.g_centered += static_cast<double>(centered_sum);
  });
  return sums;
}

template <class T, class Threads>
__device__ void WriteGrad(const Threads& threads, const NormOperands<T>& of, const HeldRow<T, Threads>& x,
                          const HeldRow<T, Threads>& dy, const NormGradNumbers<WideOf<T>>& k, T* dx) {
  using C = WideOf<T>;
  WritePacks(threads, dx, of.n, [&](int p, int64_t i) {
    return [=, v = x.At(p, i), d = dy.At(p, i), weight = threads.Load(of.w, i, of.n)](int j) {
      const C unit = (ConvertOnDevice<C>(v.values[j]) - k.mean) * k.rstd;
      const C g = ConvertOnDevice<C>(d.values[j]) * ConvertOnDevice<C>(weight.values[j]) - k.g_mean;
      return (g - unit * k.gn_mean) * k.rstd;
    };
  });
}

// The numbers of a whole row, from its sums.
template <class T, class Threads>
__device__ NormGradNumbers<WideOf<T>> OwnNumbers(const Threads& threads, const NormOperands<T>& of,
                                                 const HeldRow<T, Threads>& x, const HeldRow<T, Threads>& dy,
                                                 int64_t row) {
  using C = WideOf<T>;
  NormGradNumbers<C> k = {NumberAt(of.mean, row), of.rstd[row], C(0), C(0)};
  const NormGradSums sums = GradSumsOf(threads, of, x, dy, k.mean);
  if (of.mean != nullptr) k.g_mean = MeanOf<C>(threads.Sum(sums.g), of.n);
  k.gn_mean = MeanOf<C>(threads.Sum(sums.g_centered) * static_cast<double>(k.rstd), of.n);
  return k;
}

// dx, of means that are the row's own, or given.
template <class T>
struct NormGradRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    const HeldRow<T, Threads> x(threads, of.x[row], of.n);
    const HeldRow<T, Threads> dy(threads, of.dy[row], of.n);
    NormGradNumbers<C> k;
    if (gn_mean == nullptr) {
      k = OwnNumbers(threads, of, x, dy, row);
    } else {
      k = {NumberAt(of.mean, row), of.rstd[row], NumberAt(g_mean, row), gn_mean[row]};
    }
    WriteGrad(threads, of, x, dy, k, dx[row]);
  }

  bool LiesInPacks() const { return of.LieInPacks() && PacksAreAligned(dx); }

  NormOperands<T> of;
  const C* g_mean;
  const C* gn_mean;  // null: not given
  DeviceRows<T> dx;
};

template <class T>
struct NormGradMeansRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    const HeldRow<T, Threads> x(threads, of.x[row], of.n);
    const HeldRow<T, Threads> dy(threads, of.dy[row], of.n);
    const NormGradSums sums = GradSumsOf(threads, of, x, dy, NumberAt(of.mean, row));
    const double g = threads.Sum(sums.g);
    const double g_centered = threads.Sum(sums.g_centered);
    if (threads.rank() != 0) return;
    if (g_mean != nullptr) g_mean[row] = MeanOf<C>(g, global_columns);
    gn_mean[row] = MeanOf<C>(g_centered * static_cast<double>(of.rstd[row]), global_columns);
  }

  bool LiesInPacks() const { return of.LieInPacks(); }

  NormOperands<T> of;
  int64_t global_columns;
  C* g_mean;
  C* gn_mean;
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_NORMALIZATION_NORM_ROWS_H_
