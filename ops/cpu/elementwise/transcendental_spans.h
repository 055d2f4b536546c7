#ifndef WEFT_OPS_CPU_ELEMENTWISE_TRANSCENDENTAL_SPANS_H_
#define WEFT_OPS_CPU_ELEMENTWISE_TRANSCENDENTAL_SPANS_H_

#include <cstdint>

namespace weft {

// Over arrays of float, compiled for every instruction set level and chosen at run time, as FloatSpan is:
// y[i] depends on x[i] alone, bit for bit; y may be x; NaN gives NaN.
//
// Bounds that the test holds: sin and cos 2e-7 of 1, sigmoid 4 ulp (0 below -87, where it is under 2e-38).
void SinSpan(const float* x, float* y, int64_t n);
void CosSpan(const float* x, float* y, int64_t n);
void SigmoidSpan(const float* x, float* y, int64_t n);
// dx = dy * 2 / sqrt(pi) * exp(-x^2), to 2e-6 * |dy|.
void ErfGradSpan(const float* x, const float* dy, float* dx, int64_t n);

}  // namespace weft

#endif  // WEFT_OPS_CPU_ELEMENTWISE_TRANSCENDENTAL_SPANS_H_
