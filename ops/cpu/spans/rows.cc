#include "ops/cpu/spans/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/base/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/spans/rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that they are compiled for.
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/spans/float_exp-inl.h"
#include "ops/cpu/spans/row_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Rows are read by vectors of the compute type, whatever they are stored in, and the last vector of a row by
// the same code as the others: an element's bits do not depend on where in the row it stands.
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class S>
constexpr ComputeType<S> kLowest = static_cast<ComputeType<S>>(-kInfinity);

// e^x of any x, or with kBounded of x up to 80; nan stays nan. Elements of halves have spare digits, and
// their nans no payload in the bits where a power of two is added to the exponent.
template <class S, bool kBounded = false, class V>
HWY_INLINE V Exp(V x) {
  const RowTag<ComputeType<S>> d;
  if constexpr (std::is_same_v<S, double>) {
    // Highway's Exp gives 0 for nan and is undefined far above the largest exponent.
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Min(x, hn::Set(d, 720.0))));
  } else {
    V e;
    if constexpr (std::is_same_v<S, float>) {
      // A nan's own bits, which ExpBounded takes for a power of two, must not make a number of it.
      e = hn::IfThenElse(hn::IsNaN(x), x, ExpBounded(x));
    } else {
      e = ExpNear(x);
    }
    // Below, the power of two has no exponent to be added to, and the result is 0 instead of a
    // subnormal number. Above 88.7 it would be beyond float: callers with kBounded have no such
    // x, which spares a comparison.
    e = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3f)), e);
    if constexpr (kBounded) return e;
    return hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.7f)), hn::Inf(d), e);
  }
}

// Two maxima, so that one comparison does not wait for the other. The order of elements does not matter to a
// maximum, so the lanes need no care.
template <class S>
ComputeType<S> Max(const S* x, int64_t n) {
  const RowTag<ComputeType<S>> d;
  const auto lowest = hn::Set(d, kLowest<S>);
  auto a = lowest, b = lowest;
  // The hardware's maximum drops a nan or not, by the order of its operands: they are looked for apart.
  auto nan = hn::IsNaN(a);
  const auto take = [&](auto access, int64_t i, auto& max) HWY_ATTR {
    const Pack<S> pack = access.Load(x + i);
    for (int k = 0; k < kPackVectors<S>; ++k) {
      const auto v = access.Keep(pack.v[k], k, lowest);
      nan = hn::Or(nan, hn::IsNaN(v));
      max = hn::Max(max, v);
    }
  };
  const int64_t size = PackSize<S>();
  int64_t i = 0;
  for (; i + 2 * size <= n; i += 2 * size) {
    take(WholePack<S>(), i, a);
    take(WholePack<S>(), i + size, b);
  }
  for (; i + size <= n; i += size) take(WholePack<S>(), i, a);
  if (i < n) take(PartPack<S>{n - i}, i, a);
  if (!hn::AllFalse(d, nan)) return std::numeric_limits<ComputeType<S>>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
}

// The largest element of a row without nans.
// For a softmax, where a nan shows in the sum anyway: without the search for it, a vector is a
// load and a maximum.
template <class S>
HWY_INLINE ComputeType<S> MaxNumber(const S* x, int64_t n) {
  const RowTag<ComputeType<S>> d;
  const auto lowest = hn::Set(d, kLowest<S>);
  RowVec<ComputeType<S>> max[4] = {lowest, lowest, lowest, lowest};
  const int64_t size = PackSize<S>();
  const auto take = [&](auto access, int64_t i, int first) HWY_ATTR {
    const Pack<S> pack = access.Load(x + i);
    for (int k = 0; k < kPackVectors<S>; ++k) {
      max[first + k] = hn::Max(max[first + k], access.Keep(pack.v[k], k, lowest));
    }
  };
  int64_t i = 0;
  for (; i + 2 * size <= n; i += 2 * size) {
    take(WholePack<S>(), i, 0);
    take(WholePack<S>(), i + size, 2);
  }
  for (; i + size <= n; i += size) take(WholePack<S>(), i, 0);
  if (i < n) take(PartPack<S>{n - i}, i, 0);
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(max[0], max[1]), hn::Max(max[2], max[3]))));
}

template <class S>
double Sum(const S* x, int64_t n) {
  return SumRow<S>(
      n, [](auto v) HWY_ATTR { return v; }, x);
}

// Products and sums are of the compute type within a block of the row and of double beyond it, see SumPacks.
template <class S>
double Dot(const S* a, const S* b, int64_t n) {
  return SumRow<S>(
      n, [](auto u, auto v) HWY_ATTR { return hn::Mul(u, v); }, a, b);
}

template <class S>
double CenteredSquares(const S* x, int64_t n, ComputeType<S> mean) {
  const auto m = hn::Set(RowTag<ComputeType<S>>(), mean);
  const auto square = [=](auto v) HWY_ATTR {
    const auto centered = hn::Sub(v, m);
    return hn::Mul(centered, centered);
  };
  return SumRow<S, /*kFetch=*/true>(n, square, x);
}

template <class S>
double ExpSum(const S* x, int64_t n, ComputeType<S> shift) {
  const auto s = hn::Set(RowTag<ComputeType<S>>(), shift == kLowest<S> ? ComputeType<S>(0) : shift);
  return SumRow<S, /*kFetch=*/true>(
      n, [=](auto v) HWY_ATTR { return Exp<S>(hn::Sub(v, s)); }, x);
}

// A running log sum exp. Its shift follows the maximum from afar: while no element is more than kAbove above
// it, the sum can neither overflow nor lose digits, and most rows raise it once.
template <class S>
class ShiftedExpSum {
 public:
  using C = ComputeType<S>;
  using V = RowVec<C>;

  HWY_INLINE ShiftedExpSum()
      : max_(hn::Set(RowTag<C>(), kLowest<S>)), limit_(max_), shift_(hn::Zero(RowTag<C>())) {
    for (V& sum : sums_) sum = shift_;
  }

  // Vectors without lanes beyond the row, or with -inf there.
  // The vectors' own maximum first: one test for all of them, which is mostly false, instead of the chain
  // from maximum to exponential to sum that the online softmax is (Milakov and Gimelshein, arXiv 1805.02867).
  template <int kCount>
  HWY_INLINE void Add(const V (&v)[kCount]) {
    V max = v[0];
    for (int k = 1; k < kCount; ++k) max = hn::Max(max, v[k]);
    max_ = hn::Max(max_, max);
    if (HWY_UNLIKELY(!hn::AllFalse(RowTag<C>(), hn::Gt(max, limit_)))) Raise(max);
    for (int k = 0; k < kCount; ++k) {
      sums_[k % kSums] = hn::Add(sums_[k % kSums], Exp<S, /*kBounded=*/true>(hn::Sub(v[k], shift_)));
    }
  }

  // Moves what floats hold to the total, before they lose digits.
  HWY_INLINE void Flush() {
    const RowTag<C> d;
    total_ +=
        hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sums_[0], sums_[1]), hn::Add(sums_[2], sums_[3]))));
    for (V& sum : sums_) sum = hn::Zero(d);
  }

  HWY_INLINE LogSumExp Finish() {
    Flush();
    if (std::isnan(total_)) return {total_, total_};
    const double max = hn::GetLane(hn::MaxOfLanes(RowTag<C>(), max_));
    return {max, total_ == 0 ? 0 : total_ * std::exp(static_cast<double>(raised_) - max)};
  }

 private:
  static constexpr int kSums = 4;
  // e^16 is 9e6: a block's sum stays far below the largest float, and what it holds keeps 24 bits whatever
  // the shift. Elements that rise slowly raise the shift once per 16 that they rise.
  static constexpr C kAbove = 16;

  HWY_INLINE void Raise(V max) {
    const RowTag<C> d;
    Flush();
    const V numbers = hn::IfThenElse(hn::IsNaN(max), hn::Set(d, kLowest<S>), max);
    const C raised = hn::GetLane(hn::MaxOfLanes(d, numbers));
    if (total_ != 0) total_ *= std::exp(static_cast<double>(raised_) - static_cast<double>(raised));
    raised_ = raised;
    shift_ = hn::Set(d, raised);
    limit_ = hn::Set(d, raised + kAbove);
  }

  V max_;    // of what has come
  V limit_;  // of what may come without raising the shift
  V shift_;  // 0 as long as all is -inf
  V sums_[kSums];
  C raised_ = kLowest<S>;  // the shift, or -inf
  double total_ = 0;
};

template <class S>
LogSumExp RowLogSumExp(const S* x, int64_t n) {
  constexpr int64_t kBlock = 4096;
  // Eight vectors per test, whose exponentials do not wait for each other. The sums go to double once per
  // block, as in SumPacks.
  constexpr int kVectors = 8;
  constexpr int kPacks = kVectors / kPackVectors<S>;
  using V = RowVec<ComputeType<S>>;
  const int64_t size = PackSize<S>();
  ShiftedExpSum<S> sum;
  const auto take = [&](auto access, int64_t i) HWY_ATTR {
    const Pack<S> pack = access.Load(x + i);
    V v[kPackVectors<S>];
    for (int k = 0; k < kPackVectors<S>; ++k) {
      v[k] = access.Keep(pack.v[k], k, hn::Set(RowTag<ComputeType<S>>(), kLowest<S>));
    }
    sum.Add(v);
  };
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    int64_t i = begin;
    for (; i + kPacks * size <= end; i += kPacks * size) {
      V v[kVectors];
      for (int j = 0; j < kPacks; ++j) {
        FetchLine(x + i + j * size + kBlock);
        const Pack<S> pack = LoadPack(x + i + j * size);
        for (int k = 0; k < kPackVectors<S>; ++k) v[j * kPackVectors<S> + k] = pack.v[k];
      }
      sum.Add(v);
    }
    for (; i + size <= end; i += size) take(WholePack<S>(), i);
    if (i < end) take(PartPack<S>{end - i}, i);
    sum.Flush();
  }
  return sum.Finish();
}

template <class S>
void ExpAffine(const S* x, int64_t n, ComputeType<S> shift, ComputeType<S> scale, ComputeType<S> bias, S* y) {
  const auto s = SetPlain(shift), a = SetPlain(scale), b = SetPlain(bias);
  MapRow<S>(
      n, y, [=](auto v) HWY_ATTR { return hn::MulAdd(Exp<S>(hn::Sub(v, s)), a, b); }, x);
}

template <class S>
void Affine(const S* x, int64_t n, ComputeType<S> shift, ComputeType<S> scale, ComputeType<S> bias, S* y) {
  const auto s = SetPlain(shift), a = SetPlain(scale), b = SetPlain(bias);
  MapRow<S>(
      n, y, [=](auto v) HWY_ATTR { return hn::MulAdd(hn::Sub(v, s), a, b); }, x);
}

// A nan in the row makes the sum nan, and so all of y, whatever maximum it left. The exponentials wait for
// their sum in y itself, or as floats, so that halves are rounded once.
template <class S>
void Softmax(const S* x, int64_t n, ComputeType<S>* scratch, S* y) {
  using C = ComputeType<S>;
  C* exponentials = scratch;
  if constexpr (std::is_same_v<S, C>) exponentials = y;
  // With the maximum subtracted, every argument is at most 0 and the largest term is exactly 1: the sum is at
  // least 1, and its inverse cannot overflow.
  const auto shift = hn::Set(RowTag<C>(), MaxNumber(x, n));
  const double sum = SumPacks<S>(n, [&](auto access, int64_t i) HWY_ATTR {
    FetchLine(x + i + n);
    const auto exp = [&](auto v) HWY_ATTR { return Exp<S, /*kBounded=*/true>(hn::Sub(v, shift)); };
    const Pack<S> e = ApplyToPacks<S>(exp, access.Load(x + i));
    access.StoreWide(e, exponentials + i);
    return e;
  });
  const auto scale = SetPlain(static_cast<C>(1 / sum));
  ForPacks<S>(n, [&](auto access, int64_t i) HWY_ATTR {
    const auto multiply = [&](auto v) HWY_ATTR { return hn::Mul(v, scale); };
    access.Store(ApplyToPacks<S>(multiply, access.LoadWide(exponentials + i)), y + i);
  });
}

template <class S>
void SoftmaxGrad(const S* y, const S* dy, int64_t n, ComputeType<S> dot, S* dx) {
  const auto s = SetPlain(dot);
  const auto gradient = [=](auto v, auto dv) HWY_ATTR { return hn::Mul(v, hn::Sub(dv, s)); };
  MapRow<S, /*kFetch=*/kPackVectors<S> == 2>(n, dx, gradient, y, dy);
}

template <class S>
void LogSoftmaxGrad(const S* y, const S* dy, int64_t n, ComputeType<S> sum, S* dx) {
  const auto s = SetPlain(sum);
  const auto gradient = [=](auto v, auto dv) HWY_ATTR { return hn::NegMulAdd(Exp<S>(v), s, dv); };
  MapRow<S, /*kFetch=*/true>(n, dx, gradient, y, dy);
}

template <class S>
constexpr RowFunctions<S> kFunctions = {.max = Max<S>,
                                        .sum = Sum<S>,
                                        .dot = Dot<S>,
                                        .centered_squares = CenteredSquares<S>,
                                        .exp_sum = ExpSum<S>,
                                        .log_sum_exp = RowLogSumExp<S>,
                                        .softmax = Softmax<S>,
                                        .exp_affine = ExpAffine<S>,
                                        .affine = Affine<S>,
                                        .softmax_grad = SoftmaxGrad<S>,
                                        .log_softmax_grad = LogSoftmaxGrad<S>};

const RowFunctions<float>* RowsF32() { return &kFunctions<float>; }
const RowFunctions<double>* RowsF64() { return &kFunctions<double>; }
const RowFunctions<BFloat16>* RowsBF16() { return &kFunctions<BFloat16>; }
const RowFunctions<Float16>* RowsF16() { return &kFunctions<Float16>; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(RowsF32);
HWY_EXPORT(RowsF64);
HWY_EXPORT(RowsBF16);
HWY_EXPORT(RowsF16);

}  // namespace

template <>
const RowFunctions<float>& Rows<float>() {
  return *HWY_DYNAMIC_DISPATCH(RowsF32)();
}

template <>
const RowFunctions<double>& Rows<double>() {
  return *HWY_DYNAMIC_DISPATCH(RowsF64)();
}

template <>
const RowFunctions<BFloat16>& Rows<BFloat16>() {
  return *HWY_DYNAMIC_DISPATCH(RowsBF16)();
}

template <>
const RowFunctions<Float16>& Rows<Float16>() {
  return *HWY_DYNAMIC_DISPATCH(RowsF16)();
}

double LogSumExp::Value() const {
  return max == -std::numeric_limits<double>::infinity() ? max : max + std::log(sum);
}

}  // namespace weft
#endif  // HWY_ONCE
