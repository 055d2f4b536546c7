#ifndef WEFT_OPS_CPU_ADAMW_SPAN_H_
#define WEFT_OPS_CPU_ADAMW_SPAN_H_

#include <cstdint>

namespace weft {

// What one AdamW step comes to for an element:
//   g *= clip; m += (g - m) * gain1; v = v * beta2 + gain2 * g * g
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

// One pass over arrays of float, compiled for every instruction set level and chosen at run time. No fused
// multiply-adds: replicas of a parameter stay equal bit for bit on machines of different levels.
void AdamWFloatSpan(const AdamWConstants<float>& constants, float* p, float* m, float* v, const float* g,
                    int64_t n);

}  // namespace weft

#endif  // WEFT_OPS_CPU_ADAMW_SPAN_H_
