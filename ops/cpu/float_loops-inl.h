// What functions over arrays of float share, compiled once for every instruction set level. Include it after
// highway.h in files that hwy/foreach_target.h compiles again; hence the guard, which flips with every level.

#if defined(WEFT_OPS_CPU_FLOAT_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_FLOAT_LOOPS_INL_H_
#undef WEFT_OPS_CPU_FLOAT_LOOPS_INL_H_
#else
#define WEFT_OPS_CPU_FLOAT_LOOPS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "ops/cpu/float_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = HWY_FULL(float);
using V = hn::Vec<D>;

// sigmoid(z) and 1 - sigmoid(z), each to full relative accuracy: neither (1 + tanh) / 2 nor a subtraction
// cancels. For z within [-87, 87], where e^z and 1 + e^z are normal numbers.
struct Sigmoid {
  V value, complement;

  HWY_INLINE Sigmoid(D d, V z) {
    const V one = hn::Set(d, 1.0f);
    const V e = ExpBounded(hn::Neg(z));
    value = hn::Div(one, hn::Add(one, e));
    complement = hn::Mul(e, value);
  }
};

HWY_INLINE V Clamp(D d, V x, float limit) {
  return hn::Max(hn::Min(x, hn::Set(d, limit)), hn::Set(d, -limit));
}

// By IsNaN: Highway 1.0's Ne is false for NaN on x86.
HWY_INLINE V KeepNan(V x, V y) { return hn::IfThenElse(hn::IsNaN(x), x, y); }

struct Exp {
  static HWY_INLINE V Of(D d, V x) {
    // Highway's is defined up to 104 and takes NaN to 0; beyond 89 the result is inf anyhow.
    return KeepNan(x, hn::Exp(d, hn::Max(hn::Min(x, hn::Set(d, 100.0f)), hn::Set(d, -110.0f))));
  }
};

// The tail goes through whole vectors too, so that its elements get the same bits as any others.
template <class F>
void UnaryLoop(const float* x, float* y, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(F::Of(d, hn::LoadU(d, x + i)), d, y + i);
  if (i == n) return;
  HWY_ALIGN float tail[HWY_LANES(float)] = {};
  std::copy(x + i, x + n, tail);
  hn::Store(F::Of(d, hn::Load(d, tail)), d, tail);
  std::copy(tail, tail + (n - i), y + i);
}

template <class F>
void BinaryLoop(const float* a, const float* b, float* y, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(F::Of(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, y + i);
  if (i == n) return;
  HWY_ALIGN float tail_a[HWY_LANES(float)] = {};
  HWY_ALIGN float tail_b[HWY_LANES(float)] = {};
  std::copy(a + i, a + n, tail_a);
  std::copy(b + i, b + n, tail_b);
  hn::Store(F::Of(d, hn::Load(d, tail_a), hn::Load(d, tail_b)), d, tail_a);
  std::copy(tail_a, tail_a + (n - i), y + i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
