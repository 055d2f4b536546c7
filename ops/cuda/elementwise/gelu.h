#ifndef WEFT_OPS_CUDA_ELEMENTWISE_GELU_H_
#define WEFT_OPS_CUDA_ELEMENTWISE_GELU_H_

#include <cuda_runtime.h>

#include <cmath>

#include "ops/cuda/elementwise/sigmoid.h"

namespace weft {

// GELU by tanh and by erf, and their derivatives, with the bounds and limits of ops/cpu/spans/float_spans.h
// in float: beyond them the distribution is 0 or 1 to float. In double straight from the definitions.
//
// kQuick: for halves, as SigmoidOf.
//
// gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3); by erf x * Phi(x).
inline constexpr double kGeluCubic = 0.044715;
inline constexpr double kRootTwoOverPi = 0.79788456080286535588;
inline constexpr double kInvRootTwoPi = 0.39894228040143267794;
inline constexpr float kGeluTanhLimit = 10;
inline constexpr float kGeluErfLimit = 13.2f;

// sigmoid(2 u) for |c| <= kGeluTanhLimit.
template <bool kQuick>
__device__ inline SigmoidParts<float> GeluSigmoid(float c) {
  constexpr float kLinear = static_cast<float>(2 * kRootTwoOverPi);
  constexpr float kCubic = static_cast<float>(2 * kRootTwoOverPi * kGeluCubic);
  return SigmoidOf<kQuick>(c * (kLinear + kCubic * (c * c)));
}

template <bool kQuick>
__device__ inline float GeluTanh(float x) {
  return x < -kGeluTanhLimit ? 0.0f : x * GeluSigmoid<kQuick>(ClampTo(x, kGeluTanhLimit)).value;
}
template <bool kQuick>
__device__ inline double GeluTanh(double x) {
  return x / 2 * (1 + std::tanh(kRootTwoOverPi * (x + kGeluCubic * x * x * x)));
}

// s + x s (1 - s) (2 u)'.
template <bool kQuick>
__device__ inline float GeluTanhGrad(float x) {
  constexpr float kLinear = static_cast<float>(2 * kRootTwoOverPi);
  constexpr float kSquare = static_cast<float>(6 * kRootTwoOverPi * kGeluCubic);
  const float c = ClampTo(x, kGeluTanhLimit);
  const SigmoidParts<float> s = GeluSigmoid<kQuick>(c);
  const float derivative = s.value + c * (kLinear + kSquare * (c * c)) * (s.value * s.complement);
  return x != x ? x : x < -kGeluTanhLimit ? 0.0f : derivative;
}
template <bool kQuick>
__device__ inline double GeluTanhGrad(double x) {
  const double t = std::tanh(kRootTwoOverPi * (x + kGeluCubic * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kGeluCubic * x * x);
}

__device__ inline float GeluErf(float x) { return x < -kGeluErfLimit ? 0.0f : x * normcdff(x); }
__device__ inline double GeluErf(double x) { return x * normcdf(x); }

// Phi(x) + x phi(x).
__device__ inline float GeluErfGrad(float x) {
  const float c = ClampTo(x, kGeluErfLimit);
  const float density = expf(-0.5f * (c * c)) * static_cast<float>(kInvRootTwoPi);
  return x < -kGeluErfLimit ? 0.0f : normcdff(x) + c * density;
}
__device__ inline double GeluErfGrad(double x) {
  return normcdf(x) + x * std::exp(-x * x / 2) * kInvRootTwoPi;
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ELEMENTWISE_GELU_H_
