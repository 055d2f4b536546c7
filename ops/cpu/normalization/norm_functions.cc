#include "ops/cpu/normalization/norm_functions.h"

#include <cstdint>

#include "runtime/base/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/normalization/norm_functions.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that it is compiled for.
#include "ops/cpu/spans/row_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class S>
void Normalize(const S* x, const S* w, const S* b, int64_t n, ComputeType<S> mean, ComputeType<S> rstd,
               S* y) {
  const auto m = SetPlain(mean), r = SetPlain(rstd);
  ForPacks<S>(n, [&](auto access, int64_t i) HWY_ATTR {
    // RMS norm reads the next row for the first time right after this pass, so this one fetches it. In
    // Forward, a layer norm has summed its next row by then.
    if (b == nullptr) {
      FetchLine(x + i + n);
      const auto scale = [&](auto v, auto weight)
                             HWY_ATTR { return hn::Mul(hn::Mul(hn::Sub(v, m), r), weight); };
      access.Store(ApplyToPacks<S>(scale, access.Load(x + i), access.Load(w + i)), y + i);
    } else {
      const auto scale = [&](auto v, auto weight, auto bias)
                             HWY_ATTR { return hn::MulAdd(hn::Mul(hn::Sub(v, m), r), weight, bias); };
      access.Store(ApplyToPacks<S>(scale, access.Load(x + i), access.Load(w + i), access.Load(b + i)), y + i);
    }
  });
}

// dw += gradient * unit, db += gradient, for one pack.
// The sums of a block of rows stand in arrays that the caller adds up: they are read and written back at
// every row, in cache, instead of a second reading of x and dy by columns.
// For halves the sums stand in the order of packs, even columns and then odd ones, as they come out of the
// registers. ColumnOfSum undoes that once at the end, instead of a permutation per vector and row.
template <class S, class Access>
HWY_INLINE void AddWeightGrad(Access access, const Pack<S>& gradient, const Pack<S>& unit, ComputeType<S>* dw,
                              ComputeType<S>* db) {
  const auto multiply_add = [](auto a, auto b, auto c) HWY_ATTR { return hn::MulAdd(a, b, c); };
  access.StoreWide(ApplyToPacks<S>(multiply_add, gradient, unit, access.LoadWide(dw)), dw);
  if (db == nullptr) return;
  const auto add = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
  access.StoreWide(ApplyToPacks<S>(add, access.LoadWide(db), gradient), db);
}

// Both sums of a row and its share of dw and db, in one reading of x and dy. Two vectors for each sum, so
// that an addition does not wait for the one before.
template <class S>
NormSums GradSums(const S* x, const S* w, const S* dy, int64_t n, ComputeType<S> mean, ComputeType<S> rstd,
                  ComputeType<S>* dw, ComputeType<S>* db) {
  // Floats add up at most 4096 elements of a row before they go to double, which bounds what a
  // long row loses.
  constexpr int64_t kBlock = 4096;  // as SumPacks
  constexpr int kVectors = kPackVectors<S>;
  const RowTag<ComputeType<S>> d;
  const auto m = hn::Set(d, mean), r = hn::Set(d, rstd), zero = hn::Zero(d);
  const int64_t size = PackSize<S>();
  NormSums total;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    RowVec<ComputeType<S>> g_sum[2] = {zero, zero}, centered_sum[2] = {zero, zero};
    const auto step = [&](auto access, int64_t i, int first) HWY_ATTR {
      const Pack<S> gradient = access.Load(dy + i), values = access.Load(x + i), weight = access.Load(w + i);
      Pack<S> unit;
      for (int k = 0; k < kVectors; ++k) {
        const auto centered = hn::Sub(values.v[k], m);
        const auto g = hn::Mul(gradient.v[k], weight.v[k]);
        g_sum[first + k] = hn::Add(g_sum[first + k], g);
        // The tail's fill, where mean is inf, is nan: it must not count.
        const auto valid = access.Keep(centered, k, zero);
        centered_sum[first + k] = hn::MulAdd(g, valid, centered_sum[first + k]);
        unit.v[k] = hn::Mul(centered, r);
      }
      AddWeightGrad<S>(access, gradient, unit, dw + i, db == nullptr ? nullptr : db + i);
    };
    int64_t i = begin;
    for (; i + 2 / kVectors * size <= end; i += 2 / kVectors * size) {
      for (int k = 0; k < 2; k += kVectors) step(WholePack<S>(), i + k / kVectors * size, k);
    }
    for (; i + size <= end; i += size) step(WholePack<S>(), i, 0);
    if (i < end) step(PartPack<S>{end - i}, i, 0);
    total.g += hn::GetLane(hn::SumOfLanes(d, hn::Add(g_sum[0], g_sum[1])));
    total.g_centered += hn::GetLane(hn::SumOfLanes(d, hn::Add(centered_sum[0], centered_sum[1])));
  }
  return total;
}

// The second of GradSums' sums alone: rows that are split, and channels, make their dw and db elsewhere.
template <class S>
double GradDot(const S* x, const S* w, const S* dy, int64_t n, ComputeType<S> mean) {
  const auto m = hn::Set(RowTag<ComputeType<S>>(), mean);
  const auto product = [=](auto v, auto weight, auto gradient)
                           HWY_ATTR { return hn::Mul(hn::Mul(gradient, weight), hn::Sub(v, m)); };
  return SumRow<S>(n, product, x, w, dy);
}

// dx = rstd (g - mean g - unit mean(g unit)), with g = dy w and unit = (x - mean) rstd: what x passes back,
// less what it passes back through its row's mean and variance.
template <class S>
void Grad(const S* x, const S* w, const S* dy, int64_t n, ComputeType<S> mean, ComputeType<S> rstd,
          ComputeType<S> g_mean, ComputeType<S> gn_mean, S* dx) {
  const auto m = SetPlain(mean), r = SetPlain(rstd), gm = SetPlain(g_mean), gn = SetPlain(gn_mean);
  const auto gradient = [=](auto v, auto weight, auto dv) HWY_ATTR {
    const auto unit = hn::Mul(hn::Sub(v, m), r);
    const auto g = hn::Sub(hn::Mul(dv, weight), gm);
    return hn::Mul(hn::NegMulAdd(unit, gn, g), r);
  };
  ForPacks<S>(n, [&](auto access, int64_t i) HWY_ATTR {
    // Of floats, the next rows beside these would be more than the first-level cache has room for.
    if constexpr (kPackVectors<S> == 2) {
      FetchLine(x + i + n);
      FetchLine(dy + i + n);
    }
    access.Store(ApplyToPacks<S>(gradient, access.Load(x + i), access.Load(w + i), access.Load(dy + i)),
                 dx + i);
  });
}

// For the op that is asked for dw and db alone: no sums of the row, hence no w.
// The same additions as in GradSums, column by column in the order of rows, so that dw and db have the same
// bits whether dx is wanted or not.
template <class S>
void WeightGrad(const S* x, const S* dy, int64_t n, ComputeType<S> mean, ComputeType<S> rstd,
                ComputeType<S>* dw, ComputeType<S>* db) {
  const RowTag<ComputeType<S>> d;
  const auto m = hn::Set(d, mean), r = hn::Set(d, rstd);
  const auto normalize = [=](auto v) HWY_ATTR { return hn::Mul(hn::Sub(v, m), r); };
  ForPacks<S>(n, [&](auto access, int64_t i) HWY_ATTR {
    AddWeightGrad<S>(access, access.Load(dy + i), ApplyToPacks<S>(normalize, access.Load(x + i)), dw + i,
                     db == nullptr ? nullptr : db + i);
  });
}

template <class S>
constexpr NormFunctions<S> kFunctions = {
    .normalize = Normalize<S>,
    .grad_sums = GradSums<S>,
    .grad_dot = GradDot<S>,
    .grad = Grad<S>,
    .weight_grad = WeightGrad<S>,
    .pack_size = kPackVectors<S>* static_cast<int64_t>(HWY_LANES(ComputeType<S>))};

const NormFunctions<float>* NormRowsF32() { return &kFunctions<float>; }
const NormFunctions<double>* NormRowsF64() { return &kFunctions<double>; }
const NormFunctions<BFloat16>* NormRowsBF16() { return &kFunctions<BFloat16>; }
const NormFunctions<Float16>* NormRowsF16() { return &kFunctions<Float16>; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(NormRowsF32);
HWY_EXPORT(NormRowsF64);
HWY_EXPORT(NormRowsBF16);
HWY_EXPORT(NormRowsF16);

}  // namespace

template <>
const NormFunctions<float>& NormRows<float>() {
  return *HWY_DYNAMIC_DISPATCH(NormRowsF32)();
}

template <>
const NormFunctions<double>& NormRows<double>() {
  return *HWY_DYNAMIC_DISPATCH(NormRowsF64)();
}

template <>
const NormFunctions<BFloat16>& NormRows<BFloat16>() {
  return *HWY_DYNAMIC_DISPATCH(NormRowsBF16)();
}

template <>
const NormFunctions<Float16>& NormRows<Float16>() {
  return *HWY_DYNAMIC_DISPATCH(NormRowsF16)();
}

}  // namespace weft
#endif  // HWY_ONCE
