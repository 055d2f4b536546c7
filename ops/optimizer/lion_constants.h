#ifndef WEFT_OPS_OPTIMIZER_LION_CONSTANTS_H_
#define WEFT_OPS_OPTIMIZER_LION_CONSTANTS_H_

#include "ops/optimizer/optimizer_update.h"

namespace weft {

// What one Lion step comes to for an element, every product and sum rounded by itself:
//   g *= clip; p = p * decay - rate * sign(beta1 * m + gain1 * g); m = beta2 * m + gain2 * g
template <class C>
struct LionConstants {
  C clip;
  C decay;  // 1 - lr * weight_decay
  C rate;   // lr
  C beta1;
  C gain1;  // 1 - beta1
  C beta2;
  C gain2;  // 1 - beta2
};

template <class C>
LionConstants<C> MakeLionConstants(const LionScalars& s, double clip) {
  return {.clip = static_cast<C>(clip),
          .decay = static_cast<C>(1 - s.lr * s.weight_decay),
          .rate = static_cast<C>(s.lr),
          .beta1 = static_cast<C>(s.beta1),
          .gain1 = static_cast<C>(1 - s.beta1),
          .beta2 = static_cast<C>(s.beta2),
          .gain2 = static_cast<C>(1 - s.beta2)};
}

// 1, -1, or x itself if it is 0 or NaN.
template <class C>
constexpr C SignOf(C x) {
  return x > 0 ? C{1} : x < 0 ? C{-1} : x;
}

}  // namespace weft

#endif  // WEFT_OPS_OPTIMIZER_LION_CONSTANTS_H_
