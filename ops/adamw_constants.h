#ifndef WEFT_OPS_ADAMW_CONSTANTS_H_
#define WEFT_OPS_ADAMW_CONSTANTS_H_

#include <cmath>

#include "ops/optimizer_update.h"

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
  C rate;         // lr / (1 - beta1^step)
  C correction2;  // 1 / sqrt(1 - beta2^step)
  C eps;
};

template <class C>
AdamWConstants<C> MakeAdamWConstants(const AdamWScalars& s, double clip) {
  return {.clip = static_cast<C>(clip),
          .decay = static_cast<C>(1 - s.lr * s.weight_decay),
          .gain1 = static_cast<C>(1 - s.beta1),
          .beta2 = static_cast<C>(s.beta2),
          .gain2 = static_cast<C>(1 - s.beta2),
          .rate = static_cast<C>(s.lr / (1 - std::pow(s.beta1, static_cast<double>(s.step)))),
          .correction2 = static_cast<C>(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.step)))),
          .eps = static_cast<C>(s.eps)};
}

}  // namespace weft

#endif  // WEFT_OPS_ADAMW_CONSTANTS_H_
