#include "ops/cpu/elementwise/transcendental_spans.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise/transcendental_spans.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that they are compiled for.
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/spans/float_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

// Highway reduces arguments to a period well up to 39000; beyond this bound, and for inf and NaN, each
// element is libm's.
constexpr float kLargestAngle = 8192;

// `near` where |x| is within the bound, else exact(x), an element at a time.
// Almost no vector has such an angle, so one test decides for the whole, and only the elements that need it
// are libm's: an element's bits do not depend on its neighbours.
template <float (*kExact)(float)>
HWY_INLINE V WithLargeAngles(D d, V x, V near) {
  const auto within = hn::Le(hn::Abs(x), hn::Set(d, kLargestAngle));
  if (HWY_LIKELY(hn::AllTrue(d, within))) return near;
  HWY_ALIGN float angles[HWY_LANES(float)];
  HWY_ALIGN float values[HWY_LANES(float)];
  hn::Store(x, d, angles);
  hn::Store(near, d, values);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    if (!(std::abs(angles[i]) <= kLargestAngle)) values[i] = kExact(angles[i]);
  }
  return hn::Load(d, values);
}

struct Sin {
  static HWY_INLINE V Of(D d, V x) {
    // Highway's takes -0 to 0.
    const V near = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, hn::Sin(d, Clamp(d, x, kLargestAngle)));
    return WithLargeAngles<::sinf>(d, x, near);
  }
};
struct Cos {
  static HWY_INLINE V Of(D d, V x) {
    return WithLargeAngles<::cosf>(d, x, hn::Cos(d, Clamp(d, x, kLargestAngle)));
  }
};
// The exponential's range is the limit. Beyond 87 the result is 1 to float, just below -87 it would be
// subnormal, and is 0.
struct SigmoidFunction {
  static HWY_INLINE V Of(D d, V x) {
    const V value = Sigmoid(d, Clamp(d, x, 87.0f)).value;
    return KeepNan(x, hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), value));
  }
};
struct ErfGrad {
  static HWY_INLINE V Of(D d, V x, V dy) {
    const V density = Exp::Of(d, hn::Neg(hn::Mul(x, x)));
    return hn::Mul(dy, hn::Mul(density, hn::Set(d, 1.1283791670955126f)));
  }
};

void SinLoop(const float* x, float* y, int64_t n) { UnaryLoop<Sin>(x, y, n); }
void CosLoop(const float* x, float* y, int64_t n) { UnaryLoop<Cos>(x, y, n); }
void SigmoidLoop(const float* x, float* y, int64_t n) { UnaryLoop<SigmoidFunction>(x, y, n); }
void ErfGradLoop(const float* x, const float* dy, float* dx, int64_t n) { BinaryLoop<ErfGrad>(x, dy, dx, n); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(SinLoop);
HWY_EXPORT(CosLoop);
HWY_EXPORT(SigmoidLoop);
HWY_EXPORT(ErfGradLoop);

}  // namespace

void SinSpan(const float* x, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(SinLoop)(x, y, n); }
void CosSpan(const float* x, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(CosLoop)(x, y, n); }
void SigmoidSpan(const float* x, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(SigmoidLoop)(x, y, n); }
void ErfGradSpan(const float* x, const float* dy, float* dx, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ErfGradLoop)(x, dy, dx, n);
}

}  // namespace weft
#endif  // HWY_ONCE
