// What functions over arrays of float share, compiled once for every instruction set level. Include it after
// highway.h in files that hwy/foreach_target.h compiles again; hence the guard, which flips with every level.

#if defined(WEFT_OPS_CPU_SPANS_FLOAT_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_SPANS_FLOAT_LOOPS_INL_H_
#undef WEFT_OPS_CPU_SPANS_FLOAT_LOOPS_INL_H_
#else
#define WEFT_OPS_CPU_SPANS_FLOAT_LOOPS_INL_H_
#endif

#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "ops/cpu/spans/float_exp-inl.h"
#include "ops/cpu/spans/row_loops-inl.h"

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

// y = F of the x, by vectors of float whatever S is. The tail goes through whole vectors too, so that its
// elements get the same bits as any others.
template <class F, class S>
void UnaryLoop(const S* x, S* y, int64_t n) {
  MapRow<S>(
      n, y, [](V v) HWY_ATTR { return F::Of(D(), v); }, x);
}

template <class F, class S>
void BinaryLoop(const S* a, const S* b, S* y, int64_t n) {
  MapRow<S>(
      n, y, [](V u, V v) HWY_ATTR { return F::Of(D(), u, v); }, a, b);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
