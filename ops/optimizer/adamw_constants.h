#ifndef WEFT_OPS_OPTIMIZER_ADAMW_CONSTANTS_H_
#define WEFT_OPS_OPTIMIZER_ADAMW_CONSTANTS_H_

#include <cstdint>

#include "ops/optimizer/optimizer_update.h"

namespace weft {

// What one AdamW step comes to for an element, every product and sum rounded by itself:
//   g *= clip; m += (g - m) * gain1; v = v * beta2 + g * g * gain2
//   p = p * decay - rate * (m / (sqrt(v) * correction2 + eps))
template <class C>
struct AdamWConstants {
  C clip;
  C decay;  // 1 - lr * weight_decay
  C gain1;  // 1 - beta1
  C beta2;
  C gain2;        // 1 - beta2
  C rate;         // lr / (1 - beta1^t)
  C correction2;  // 1 / sqrt(1 - beta2^t)
  C eps;
};

// `rate` and `correction2` are kAdamWRates'.
template <class C>
AdamWConstants<C> MakeAdamWConstants(const AdamWScalars& s, double clip, double rate, double correction2) {
  return {.clip = static_cast<C>(clip),
          .decay = static_cast<C>(1 - s.lr * s.weight_decay),
          .gain1 = static_cast<C>(1 - s.beta1),
          .beta2 = static_cast<C>(s.beta2),
          .gain2 = static_cast<C>(1 - s.beta2),
          .rate = static_cast<C>(rate),
          .correction2 = static_cast<C>(correction2),
          .eps = static_cast<C>(s.eps)};
}

struct AdamWRates {
  double rate = 0;
  double correction2 = 0;
};

// beta^t by squares: not std::pow, whose last bits are each machine's. Math as NormalQuantile's.
template <class Math>
constexpr double PowerOf(double beta, int64_t t) {
  double power = 1;
  for (; t > 0; t >>= 1) {
    if (t % 2 != 0) power = Math::Mul(power, beta);
    beta = Math::Mul(beta, beta);
  }
  return power;
}

// What kAdamWRates computes, on every device.
template <class Math>
constexpr AdamWRates AdamWRatesOf(const AdamWRatesScalars& s, int64_t t) {
  return {.rate = s.lr / Math::Add(1, -PowerOf<Math>(s.beta1, t)),
          .correction2 = 1 / Math::Sqrt(Math::Add(1, -PowerOf<Math>(s.beta2, t)))};
}

}  // namespace weft

#endif  // WEFT_OPS_OPTIMIZER_ADAMW_CONSTANTS_H_
