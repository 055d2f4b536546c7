#ifndef WEFT_OPS_CUDA_ELEMENTWISE_SIGMOID_H_
#define WEFT_OPS_CUDA_ELEMENTWISE_SIGMOID_H_

#include <cuda_runtime.h>

#include <cmath>

namespace weft {

// sigmoid(z) and 1 - sigmoid(z), each to full relative accuracy: neither (1 + tanh) / 2 nor a subtraction
// cancels. In float for z within [-87, 87], where e^z and 1 + e^z are normal numbers.
template <class C>
struct SigmoidParts {
  C value, complement;
};

// kQuick: for halves, by the quick instruction, whose relative error, some 2e-7 + 1e-7 |z|, is far below theirs.
template <bool kQuick = false>
__device__ inline SigmoidParts<float> SigmoidOf(float z) {
  const float e = kQuick ? __expf(-z) : expf(-z);
  const float value = __fdividef(1.0f, 1.0f + e);
  return {value, e * value};
}
__device__ inline SigmoidParts<double> SigmoidOf(double z) {
  return {1 / (1 + std::exp(-z)), 1 / (1 + std::exp(z))};
}

// x cut to [-limit, limit], `limit` for NaN.
__device__ inline float ClampTo(float x, float limit) { return fmaxf(fminf(x, limit), -limit); }

inline constexpr float kSigmoidLimit = 87;

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ELEMENTWISE_SIGMOID_H_
