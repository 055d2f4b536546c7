#include "ops/cpu/spans/sum_spans.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/spans/sum_spans.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = HWY_FULL(float);
using V = hn::Vec<D>;

// Whatever the width of a vector: two of AVX-512, four of AVX2, eight of SSE. So element i is added to sum i
// % 32 at every level, in the same order, and a sum has the same bits on every machine.
constexpr int64_t kSums = 32;
constexpr int64_t kVectors = kSums / HWY_LANES(float);

HWY_INLINE V Load(const float* x) { return hn::LoadU(D(), x); }
HWY_INLINE V Load(const BFloat16* x) {
  const HWY_FULL(uint32_t) u;
  const hn::Rebind<uint16_t, D> half;
  const auto bits = hn::LoadU(half, reinterpret_cast<const uint16_t*>(x));
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(u, bits)));
}

struct Plain {
  static HWY_INLINE V Of(V x) { return x; }
  static HWY_INLINE float OfOne(float x) { return x; }
};
// A product and a sum, not one multiply-add: the levels without it would round once more, and differ.
struct Squared {
  static HWY_INLINE V Of(V x) { return hn::Mul(x, x); }
  static HWY_INLINE float OfOne(float x) { return x * x; }
};

// The first four of a run's halved sums.
template <class Lift, class T>
HWY_INLINE void SumRun(const T* x, int64_t n, float* sums) {
  const D d;
  V vectors[kVectors];
  for (V& vector : vectors) vector = hn::Zero(d);
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t k = 0; k < kVectors; ++k) {
      vectors[k] = hn::Add(vectors[k], Lift::Of(Load(x + i + k * HWY_LANES(float))));
    }
  }
  for (int64_t k = 0; k < kVectors; ++k) hn::Store(vectors[k], d, sums + k * HWY_LANES(float));
  // The rest of a run goes on in the order of the sums, an element each, as a wider vector would have it.
  for (int64_t j = 0; i < n; ++i, ++j) sums[j] = sums[j] + Lift::OfOne(static_cast<float>(x[i]));
  // By memory, not by shuffles within a vector, whose order would follow from its width. Down to four: they
  // meet in double, in SumRuns.
  for (int64_t half = kSums / 2; half >= 4; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sums[j] = sums[j] + sums[j + half];
  }
}

// Floats add up 16 elements each before they are emptied into a double, which bounds the rounding of a long
// sum by that of a short one.
template <class Lift, class T>
HWY_INLINE double SumRuns(double total, const T* x, int64_t n) {
  HWY_ALIGN float sums[kSums];
  for (int64_t begin = 0; begin < n; begin += kSumRun) {
    SumRun<Lift>(x + begin, std::min(kSumRun, n - begin), sums);
    for (int j = 0; j < 4; ++j) total = total + static_cast<double>(sums[j]);
  }
  return total;
}

// kRows rows at once, so that the sums are read and written once for all of them. The next rows are fetched:
// each lies in a page of its own, where the hardware's prefetchers start anew.
template <class Lift, int kRows, class T>
HWY_INLINE void AddSomeRows(const T* x, int64_t columns, int64_t stride, float* sums) {
  const D d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= columns; i += lanes) {
    V sum = hn::LoadU(d, sums + i);
    for (int row = 0; row < kRows; ++row) {
      __builtin_prefetch(x + (row + kRows) * stride + i);
      sum = hn::Add(sum, Lift::Of(Load(x + row * stride + i)));
    }
    hn::StoreU(sum, d, sums + i);
  }
  for (; i < columns; ++i) {
    for (int row = 0; row < kRows; ++row)
      sums[i] = sums[i] + Lift::OfOne(static_cast<float>(x[row * stride + i]));
  }
}

// Four rows are four additions to a sum that was loaded once. They are added one after the other, as single
// rows would be, so that the bits do not depend on the grouping.
template <class Lift, class T>
HWY_INLINE void AddAllRows(const T* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) AddSomeRows<Lift, 4>(x + row * stride, columns, stride, sums);
  for (; row < rows; ++row) AddSomeRows<Lift, 1>(x + row * stride, columns, stride, sums);
}

double Sum(double total, const float* x, int64_t n) { return SumRuns<Plain>(total, x, n); }
double SquareSum(double total, const float* x, int64_t n) { return SumRuns<Squared>(total, x, n); }
void AddRows(const float* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  AddAllRows<Plain>(x, rows, columns, stride, sums);
}
void AddSquaredRows(const float* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  AddAllRows<Squared>(x, rows, columns, stride, sums);
}
double SumOfHalves(double total, const BFloat16* x, int64_t n) { return SumRuns<Plain>(total, x, n); }
double SquareSumOfHalves(double total, const BFloat16* x, int64_t n) { return SumRuns<Squared>(total, x, n); }
void AddRowsOfHalves(const BFloat16* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  AddAllRows<Plain>(x, rows, columns, stride, sums);
}
void AddSquaredRowsOfHalves(const BFloat16* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  AddAllRows<Squared>(x, rows, columns, stride, sums);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(Sum);
HWY_EXPORT(SquareSum);
HWY_EXPORT(AddRows);
HWY_EXPORT(AddSquaredRows);
HWY_EXPORT(SumOfHalves);
HWY_EXPORT(SquareSumOfHalves);
HWY_EXPORT(AddRowsOfHalves);
HWY_EXPORT(AddSquaredRowsOfHalves);

}  // namespace

double SumSpan(double total, const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Sum)(total, x, n); }
double SumSpan(double total, const BFloat16* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SumOfHalves)(total, x, n);
}
double SquareSumSpan(double total, const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SquareSum)(total, x, n);
}
double SquareSumSpan(double total, const BFloat16* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SquareSumOfHalves)(total, x, n);
}
void AddRowsSpan(const float* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  HWY_DYNAMIC_DISPATCH(AddRows)(x, rows, columns, stride, sums);
}
void AddRowsSpan(const BFloat16* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  HWY_DYNAMIC_DISPATCH(AddRowsOfHalves)(x, rows, columns, stride, sums);
}
void AddSquaredRowsSpan(const float* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  HWY_DYNAMIC_DISPATCH(AddSquaredRows)(x, rows, columns, stride, sums);
}
void AddSquaredRowsSpan(const BFloat16* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  HWY_DYNAMIC_DISPATCH(AddSquaredRowsOfHalves)(x, rows, columns, stride, sums);
}

}  // namespace weft
#endif  // HWY_ONCE
