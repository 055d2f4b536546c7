#include "ops/cpu/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that they are compiled for.
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/float_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using D = hn::ScalableTag<T>;
template <class T>
using V = hn::Vec<D<T>>;

// How a loop body reaches its vectors: whole ones, or the last one of a row, which is padded through a
// buffer.
template <class T>
struct Whole {
  HWY_INLINE V<T> Load(const T* p, T) const { return hn::LoadU(D<T>(), p); }
  HWY_INLINE void Store(V<T> v, T* p) const { hn::StoreU(v, D<T>(), p); }
  // v, with 0 in lanes beyond the row.
  HWY_INLINE V<T> Keep(V<T> v) const { return v; }
};

template <class T>
struct Part {
  int64_t count;

  HWY_INLINE V<T> Load(const T* p, T pad) const {
    HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
    hn::Store(hn::Set(D<T>(), pad), D<T>(), buffer);
    std::memcpy(buffer, p, count * sizeof(T));
    return hn::Load(D<T>(), buffer);
  }
  HWY_INLINE void Store(V<T> v, T* p) const {
    HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
    hn::Store(v, D<T>(), buffer);
    std::memcpy(p, buffer, count * sizeof(T));
  }
  HWY_INLINE V<T> Keep(V<T> v) const { return hn::IfThenElseZero(hn::FirstN(D<T>(), count), v); }
};

// Fetches what lies a row further on into the cache: in the last pass over a row, which computes while memory
// would be idle. Rows mostly follow each other; where they do not, nothing is lost but the instruction.
template <class T>
HWY_INLINE void Fetch(const T* p) {
  __builtin_prefetch(p);
}

// body(access, i) for every vector of a row.
template <class T, class Body>
HWY_INLINE void ForRow(int64_t n, const Body& body) {
  const int64_t lanes = hn::Lanes(D<T>());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(Whole<T>(), i);
  if (i < n) body(Part<T>{n - i}, i);
}

// The sum of body(access, i), a vector, over a row. Blocks bound what rounding in T can lose; four sums hide
// latency.
template <class T, class Body>
HWY_INLINE double SumRow(int64_t n, const Body& body) {
  constexpr int64_t kBlock = 4096;
  const D<T> d;
  const int64_t lanes = hn::Lanes(d);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    V<T> a = hn::Zero(d), b = a, c = a, e = a;
    int64_t i = begin;
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      a = hn::Add(a, body(Whole<T>(), i));
      b = hn::Add(b, body(Whole<T>(), i + lanes));
      c = hn::Add(c, body(Whole<T>(), i + 2 * lanes));
      e = hn::Add(e, body(Whole<T>(), i + 3 * lanes));
    }
    for (; i + lanes <= end; i += lanes) a = hn::Add(a, body(Whole<T>(), i));
    // Lanes beyond the end count nothing, whatever the body makes of their fill: inf - inf is not 0.
    if (i < end) a = hn::Add(a, hn::IfThenElseZero(hn::FirstN(d, end - i), body(Part<T>{end - i}, i)));
    total += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
  }
  return total;
}

HWY_INLINE V<float> Exp(V<float> x) { return ExpOf(x); }

// Highway's Exp gives 0 for nan and is undefined far above the largest exponent.
HWY_INLINE V<double> Exp(V<double> x) {
  const D<double> d;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Min(x, hn::Set(d, 720.0))));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
T Max(const T* x, int64_t n) {
  const D<T> d;
  const int64_t lanes = hn::Lanes(d);
  const T lowest = static_cast<T>(-kInfinity);
  V<T> a = hn::Set(d, lowest), b = a;
  // The hardware's maximum drops a nan or not, by the order of its operands: they are looked for apart.
  auto nan = hn::IsNaN(a);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const V<T> u = hn::LoadU(d, x + i);
    const V<T> v = hn::LoadU(d, x + i + lanes);
    nan = hn::Or(nan, hn::Or(hn::IsNaN(u), hn::IsNaN(v)));
    a = hn::Max(a, u);
    b = hn::Max(b, v);
  }
  for (; i < n; i += lanes) {
    const V<T> u = Part<T>{std::min(lanes, n - i)}.Load(x + i, lowest);
    nan = hn::Or(nan, hn::IsNaN(u));
    a = hn::Max(a, u);
  }
  if (!hn::AllFalse(d, nan)) return std::numeric_limits<T>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
}

template <class T>
double Sum(const T* x, int64_t n) {
  return SumRow<T>(n, [=](auto access, int64_t i) HWY_ATTR { return access.Load(x + i, 0); });
}

template <class T>
double Dot(const T* a, const T* b, int64_t n) {
  return SumRow<T>(n, [=](auto access, int64_t i)
                          HWY_ATTR { return hn::Mul(access.Load(a + i, 0), access.Load(b + i, 0)); });
}

template <class T>
double CenteredSquares(const T* x, int64_t n, T mean) {
  const V<T> m = hn::Set(D<T>(), mean);
  return SumRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    Fetch(x + i + n);
    const V<T> c = hn::Sub(access.Load(x + i, mean), m);
    return hn::Mul(c, c);
  });
}

template <class T>
double ExpSum(const T* x, int64_t n, T shift) {
  const T lowest = static_cast<T>(-kInfinity);
  const V<T> s = hn::Set(D<T>(), shift == lowest ? T(0) : shift);
  return SumRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    Fetch(x + i + n);
    return Exp(hn::Sub(access.Load(x + i, lowest), s));
  });
}

template <class T>
double ExpWrite(const T* x, int64_t n, T shift, T* y) {
  const V<T> s = hn::Set(D<T>(), shift);
  return SumRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    Fetch(x + i + n);
    const V<T> e = Exp(hn::Sub(access.Load(x + i, static_cast<T>(-kInfinity)), s));
    access.Store(e, y + i);
    return e;
  });
}

template <class T>
void ExpAffine(const T* x, int64_t n, T shift, T scale, T bias, T* y) {
  const D<T> d;
  const V<T> s = hn::Set(d, shift), a = hn::Set(d, scale), b = hn::Set(d, bias);
  ForRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    access.Store(hn::MulAdd(Exp(hn::Sub(access.Load(x + i, 0), s)), a, b), y + i);
  });
}

template <class T>
void Affine(const T* x, int64_t n, T shift, T scale, T bias, T* y) {
  const D<T> d;
  const V<T> s = hn::Set(d, shift), a = hn::Set(d, scale), b = hn::Set(d, bias);
  ForRow<T>(n, [=](auto access, int64_t i)
                   HWY_ATTR { access.Store(hn::MulAdd(hn::Sub(access.Load(x + i, 0), s), a, b), y + i); });
}

template <class T>
void SoftmaxGrad(const T* y, const T* dy, int64_t n, T dot, T* dx) {
  const V<T> s = hn::Set(D<T>(), dot);
  ForRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    access.Store(hn::Mul(access.Load(y + i, 0), hn::Sub(access.Load(dy + i, 0), s)), dx + i);
  });
}

template <class T>
void LogSoftmaxGrad(const T* y, const T* dy, int64_t n, T sum, T* dx) {
  const V<T> s = hn::Set(D<T>(), sum);
  ForRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    Fetch(y + i + n);
    Fetch(dy + i + n);
    access.Store(hn::NegMulAdd(Exp(access.Load(y + i, 0)), s, access.Load(dy + i, 0)), dx + i);
  });
}

template <class T>
void Normalize(const T* x, const T* w, const T* b, int64_t n, T mean, T rstd, T* y) {
  const D<T> d;
  const V<T> m = hn::Set(d, mean), r = hn::Set(d, rstd);
  if (b == nullptr) {
    ForRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
      Fetch(x + i + n);
      const V<T> unit = hn::Mul(hn::Sub(access.Load(x + i, 0), m), r);
      access.Store(hn::Mul(unit, access.Load(w + i, 0)), y + i);
    });
  } else {
    ForRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
      const V<T> unit = hn::Mul(hn::Sub(access.Load(x + i, 0), m), r);
      access.Store(hn::MulAdd(unit, access.Load(w + i, 0), access.Load(b + i, 0)), y + i);
    });
  }
}

template <class T>
NormSums NormGradSums(const T* x, const T* w, const T* dy, int64_t n, T mean, T rstd, T* dw, T* db) {
  constexpr int64_t kBlock = 4096;  // as SumRow
  const D<T> d;
  const V<T> m = hn::Set(d, mean), r = hn::Set(d, rstd), zero = hn::Zero(d);
  const int64_t lanes = hn::Lanes(d);
  NormSums total;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    V<T> g_sum[2] = {zero, zero}, centered_sum[2] = {zero, zero};
    const auto step = [&](auto access, int64_t i, int k) HWY_ATTR {
      const V<T> gradient = access.Load(dy + i, 0);
      const V<T> centered = hn::Sub(access.Load(x + i, mean), m);
      const V<T> g = hn::Mul(gradient, access.Load(w + i, 0));
      g_sum[k] = hn::Add(g_sum[k], g);
      // The tail's fill, where mean is inf, is nan: it must not count.
      const V<T> valid = access.Keep(centered);
      centered_sum[k] = hn::MulAdd(g, valid, centered_sum[k]);
      access.Store(hn::MulAdd(gradient, hn::Mul(centered, r), access.Load(dw + i, 0)), dw + i);
      if (db != nullptr) access.Store(hn::Add(access.Load(db + i, 0), gradient), db + i);
    };
    int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      step(Whole<T>(), i, 0);
      step(Whole<T>(), i + lanes, 1);
    }
    for (; i + lanes <= end; i += lanes) step(Whole<T>(), i, 0);
    if (i < end) step(Part<T>{end - i}, i, 0);
    total.g += hn::GetLane(hn::SumOfLanes(d, hn::Add(g_sum[0], g_sum[1])));
    total.g_centered += hn::GetLane(hn::SumOfLanes(d, hn::Add(centered_sum[0], centered_sum[1])));
  }
  return total;
}

template <class T>
double NormGradDot(const T* x, const T* w, const T* dy, int64_t n, T mean) {
  const V<T> m = hn::Set(D<T>(), mean);
  return SumRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    const V<T> g = hn::Mul(access.Load(dy + i, 0), access.Load(w + i, 0));
    return hn::Mul(g, hn::Sub(access.Load(x + i, mean), m));
  });
}

template <class T>
void NormGrad(const T* x, const T* w, const T* dy, int64_t n, T mean, T rstd, T g_mean, T gn_mean, T* dx) {
  const D<T> d;
  const V<T> m = hn::Set(d, mean), r = hn::Set(d, rstd), gm = hn::Set(d, g_mean), gn = hn::Set(d, gn_mean);
  ForRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    const V<T> unit = hn::Mul(hn::Sub(access.Load(x + i, 0), m), r);
    const V<T> g = hn::Sub(hn::Mul(access.Load(dy + i, 0), access.Load(w + i, 0)), gm);
    access.Store(hn::Mul(hn::NegMulAdd(unit, gn, g), r), dx + i);
  });
}

template <class T>
void NormWeightGrad(const T* x, const T* dy, int64_t n, T mean, T rstd, T* dw, T* db) {
  const D<T> d;
  const V<T> m = hn::Set(d, mean), r = hn::Set(d, rstd);
  ForRow<T>(n, [=](auto access, int64_t i) HWY_ATTR {
    const V<T> unit = hn::Mul(hn::Sub(access.Load(x + i, 0), m), r);
    const V<T> g = access.Load(dy + i, 0);
    access.Store(hn::MulAdd(g, unit, access.Load(dw + i, 0)), dw + i);
    if (db != nullptr) access.Store(hn::Add(access.Load(db + i, 0), g), db + i);
  });
}

template <class T>
constexpr RowFunctions<T> kFunctions = {.max = Max<T>,
                                        .sum = Sum<T>,
                                        .dot = Dot<T>,
                                        .centered_squares = CenteredSquares<T>,
                                        .exp_sum = ExpSum<T>,
                                        .exp_write = ExpWrite<T>,
                                        .exp_affine = ExpAffine<T>,
                                        .affine = Affine<T>,
                                        .softmax_grad = SoftmaxGrad<T>,
                                        .log_softmax_grad = LogSoftmaxGrad<T>,
                                        .normalize = Normalize<T>,
                                        .norm_grad_sums = NormGradSums<T>,
                                        .norm_grad_dot = NormGradDot<T>,
                                        .norm_grad = NormGrad<T>,
                                        .norm_weight_grad = NormWeightGrad<T>};

const RowFunctions<float>* RowsF32() { return &kFunctions<float>; }
const RowFunctions<double>* RowsF64() { return &kFunctions<double>; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(RowsF32);
HWY_EXPORT(RowsF64);

}  // namespace

template <>
const RowFunctions<float>& Rows<float>() {
  return *HWY_DYNAMIC_DISPATCH(RowsF32)();
}

template <>
const RowFunctions<double>& Rows<double>() {
  return *HWY_DYNAMIC_DISPATCH(RowsF64)();
}

double LogSumExp::Value() const {
  return max == -std::numeric_limits<double>::infinity() ? max : max + std::log(sum);
}

template <class T>
LogSumExp RowLogSumExp(const T* x, int64_t n) {
  constexpr int64_t kBlock = 2048;  // with the next one, which exp_sum fetches, half the first-level cache
  const RowFunctions<T>& rows = Rows<T>();
  T max = -std::numeric_limits<T>::infinity();
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    const T block_max = rows.max(x + begin, size);
    if (!(block_max <= max)) {  // also where it is nan
      // An empty sum stays 0, whatever the maximum was.
      if (sum != 0) sum *= std::exp(static_cast<double>(max) - static_cast<double>(block_max));
      max = block_max;
    }
    sum += rows.exp_sum(x + begin, size, max);
  }
  return {max, sum};
}

template LogSumExp RowLogSumExp(const float* x, int64_t n);
template LogSumExp RowLogSumExp(const double* x, int64_t n);

}  // namespace weft
#endif  // HWY_ONCE
