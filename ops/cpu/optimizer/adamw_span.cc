#include "ops/cpu/optimizer/adamw_span.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/optimizer/adamw_span.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = HWY_FULL(float);
using V = hn::Vec<D>;

struct AdamW {
  V clip, decay, gain1, beta2, gain2, rate, correction2, eps;

  HWY_INLINE AdamW(D d, const AdamWConstants<float>& c)
      : clip(hn::Set(d, c.clip)),
        decay(hn::Set(d, c.decay)),
        gain1(hn::Set(d, c.gain1)),
        beta2(hn::Set(d, c.beta2)),
        gain2(hn::Set(d, c.gain2)),
        rate(hn::Set(d, c.rate)),
        correction2(hn::Set(d, c.correction2)),
        eps(hn::Set(d, c.eps)) {}

  // One vector of each.
  // All of the step while p, m, v and g are in registers: an op per line would read and write them several
  // times, and the update is bound by memory. Products and sums apart, see the header.
  HWY_INLINE void Step(D d, float* p, float* m, float* v, const float* g) const {
    const V gradient = hn::Mul(hn::LoadU(d, g), clip);
    const V old_m = hn::LoadU(d, m);
    const V new_m = hn::Add(old_m, hn::Mul(hn::Sub(gradient, old_m), gain1));
    const V new_v = hn::Add(hn::Mul(hn::LoadU(d, v), beta2), hn::Mul(hn::Mul(gradient, gradient), gain2));
    const V denominator = hn::Add(hn::Mul(hn::Sqrt(new_v), correction2), eps);
    const V step = hn::Mul(rate, hn::Div(new_m, denominator));
    hn::StoreU(hn::Sub(hn::Mul(hn::LoadU(d, p), decay), step), d, p);
    hn::StoreU(new_m, d, m);
    hn::StoreU(new_v, d, v);
  }
};

void Update(const AdamWConstants<float>& constants, float* p, float* m, float* v, const float* g, int64_t n) {
  const D d;
  const AdamW adamw(d, constants);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) adamw.Step(d, p + i, m + i, v + i, g + i);
  if (i == n) return;
  // The rest as a whole vector too: the cut of a parameter into spans does not show in its bits. What the
  // padding makes, nan perhaps, is dropped.
  float tail_p[HWY_LANES(float)] = {};
  float tail_m[HWY_LANES(float)] = {};
  float tail_v[HWY_LANES(float)] = {};
  float tail_g[HWY_LANES(float)] = {};
  std::copy(p + i, p + n, tail_p);
  std::copy(m + i, m + n, tail_m);
  std::copy(v + i, v + n, tail_v);
  std::copy(g + i, g + n, tail_g);
  adamw.Step(d, tail_p, tail_m, tail_v, tail_g);
  std::copy(tail_p, tail_p + (n - i), p + i);
  std::copy(tail_m, tail_m + (n - i), m + i);
  std::copy(tail_v, tail_v + (n - i), v + i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(Update);

}  // namespace

void AdamWFloatSpan(const AdamWConstants<float>& constants, float* p, float* m, float* v, const float* g,
                    int64_t n) {
  HWY_DYNAMIC_DISPATCH(Update)(constants, p, m, v, g, n);
}

}  // namespace weft
#endif  // HWY_ONCE
