#include <cuda_runtime.h>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/row_loop.h"
#include "ops/cuda/blocks/row_math.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/op/kernel.h"
#include "ops/reduce/row_reductions.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

// y = max x.
// Rows are not held in registers here: none of these bodies looks at an element twice.
template <class T>
struct MaxRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    C max = -kInfinityOf<C>;
    const MaxOfValues larger;
    ForEachPack<T>(threads, n, [&](int, int64_t i) {
      const RowPack<T> v = threads.Load(x[row], i, n);
#pragma unroll
      for (int j = 0; j < RowPack<T>::kSize; ++j) {
        if (Threads::kWhole || i + j < n) max = larger(static_cast<C>(v.values[j]), max);
      }
    });
    max = threads.Reduce(max, larger);
    if (threads.rank() == 0) y[row] = max;
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(n, x); }

  DeviceRows<const T> x;
  int64_t n;
  C* y;
};

// y = factor * sum a * b; without b, of a.
// A product of two halves has at most 22 significant bits and is exact in float, but for float's range; a
// pack adds up in C and packs in double, so the error hardly grows with the row.
template <class T, bool kDot>
struct DotRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    double sum = SumOverPacks<T, C>(threads, n, [&](int, int64_t i) {
      const RowPack<T> u = threads.Load(a[row], i, n);
      return [u, v = kDot ? threads.Load(b[row], i, n) : u](int j) {
        return kDot ? static_cast<C>(u.values[j]) * static_cast<C>(v.values[j]) : static_cast<C>(u.values[j]);
      };
    });
    sum = threads.Sum(sum);
    // The factor comes in before the one rounding to C.
    if (threads.rank() == 0) y[row] = static_cast<C>(sum * factor);
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(n, a, b); }

  DeviceRows<const T> a;
  DeviceRows<const T> b;
  int64_t n;
  double factor;
  C* y;
};

// y = factor * sum (x - around)^2, or with kExp sum exp(x - around), where an `around` of -inf counts as 0.
// `around` comes from a reduction of its own, all-reduced where the row is split: one pass that keeps a
// running maximum or mean has states that no all-reduce adds up.
template <class T, bool kExp>
struct AroundRow {
  using Element = T;
  using C = WideOf<T>;

  template <class Threads>
  __device__ void operator()(const Threads& threads, int64_t row) const {
    const C given = around[row];
    const C shift = kExp && given == -kInfinityOf<C> ? C(0) : given;
    double sum = SumOverPacks<T, C>(threads, n, [&](int, int64_t i) {
      return [v = threads.Load(x[row], i, n), shift](int j) {
        const C centered = static_cast<C>(v.values[j]) - shift;
        return kExp ? ExpFor<T>(centered) : centered * centered;
      };
    });
    sum = threads.Sum(sum);
    if (threads.rank() == 0) y[row] = static_cast<C>(sum * factor);
  }

  bool LiesInPacks() const { return RowsLieInPacks<T>(n, x); }

  DeviceRows<const T> x;
  const C* around;
  int64_t n;
  double factor;
  C* y;
};

// 1 / the global extent, so that the pieces of a split row add up to the mean; 0 of nothing.
double OneOverGlobalColumns(const Call& call) {
  const int64_t n = call.input_boxes[0].global_shape[call.inputs[0].ndim() - 1];
  return n == 0 ? 0 : 1 / static_cast<double>(n);
}

void RowMax(const Call& call) {
  const RowTensor x(call.inputs[0], call.context);
  VisitFloating(call.inputs[0].dtype(), "row_max", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchRows(KernelStream(call), x.num_rows(), x.num_columns(),
               MaxRow<T>{x.rows<T>(), x.num_columns(), call.outputs[0].data<WideOf<T>>()});
  });
}

// Of one operand, or the dot product of two.
template <bool kDot>
void SumRows(const Call& call, const Tensor& second, double factor) {
  const RowTensor a(call.inputs[0], call.context);
  const RowTensor b(second, call.context);
  VisitFloating(call.inputs[0].dtype(), "row_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchRows(KernelStream(call), a.num_rows(), a.num_columns(),
               DotRow<T, kDot>{a.rows<T>(), b.rows<T>(), a.num_columns(), factor,
                               call.outputs[0].data<WideOf<T>>()});
  });
}

void RowSum(const Call& call) { SumRows<false>(call, call.inputs[0], /*factor=*/1); }
void RowMean(const Call& call) { SumRows<false>(call, call.inputs[0], OneOverGlobalColumns(call)); }
void RowDot(const Call& call) { SumRows<true>(call, call.inputs[1], /*factor=*/1); }

template <bool kExp>
void SumRowsAround(const Call& call, double factor) {
  const RowTensor x(call.inputs[0], call.context);
  const Tensor around = PackedTensor(call.inputs[1], call.context);
  VisitFloating(call.inputs[0].dtype(), "row_variance", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = WideOf<T>;
    LaunchRows(KernelStream(call), x.num_rows(), x.num_columns(),
               AroundRow<T, kExp>{x.rows<T>(), around.data<C>(), x.num_columns(), factor,
                                  call.outputs[0].data<C>()});
  });
}

void RowVariance(const Call& call) { SumRowsAround<false>(call, OneOverGlobalColumns(call)); }
void RowExpSum(const Call& call) { SumRowsAround<true>(call, /*factor=*/1); }

// As the dot product of x with itself: what is read twice comes from the cache.
void RowMeanSquare(const Call& call) { SumRows<true>(call, call.inputs[0], OneOverGlobalColumns(call)); }

const RegisterKernel kRegister[] = {
    {kRowMax, DeviceType::kCuda, RowMax},           {kRowSum, DeviceType::kCuda, RowSum},
    {kRowDot, DeviceType::kCuda, RowDot},           {kRowExpSum, DeviceType::kCuda, RowExpSum},
    {kRowMean, DeviceType::kCuda, RowMean},         {kRowMeanSquare, DeviceType::kCuda, RowMeanSquare},
    {kRowVariance, DeviceType::kCuda, RowVariance},
};

}  // namespace
}  // namespace weft
