#include <cuda_runtime.h>

#include <cmath>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/cuda/elementwise/sigmoid.h"
#include "ops/elementwise/transcendental.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

struct SinOf {
  template <class C>
  __device__ C operator()(C x) const {
    return std::sin(x);
  }
};
struct CosOf {
  template <class C>
  __device__ C operator()(C x) const {
    return std::cos(x);
  }
};
// Below the limit e^-x would leave the range of float: see sigmoid.h. A NaN would be clamped to a number.
struct SigmoidFunction {
  __device__ float operator()(float x) const {
    if (x != x) return x;
    return x < -kSigmoidLimit ? 0.0f : SigmoidOf(ClampTo(x, kSigmoidLimit)).value;
  }
  __device__ double operator()(double x) const { return SigmoidOf(x).value; }
};
struct ErfOf {
  template <class C>
  __device__ C operator()(C x) const {
    return std::erf(x);
  }
};
// From y, which is saved instead of x: no exponential.
struct SigmoidGradOf {
  template <class C>
  __device__ C operator()(C y, C dy) const {
    return dy * ((1 - y) * y);
  }
};
struct ErfGradOf {
  template <class C>
  __device__ C operator()(C x, C dy) const {
    constexpr C kTwoOverRootPi = static_cast<C>(1.12837916709551257390);
    return dy * (kTwoOverRootPi * std::exp(-x * x));
  }
};

template <class Function>
void Unary(const Call& call) {
  VisitFloating(call.outputs[0].dtype(), "transcendental", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T>(call, Function());
  });
}

template <class Function>
void Gradient(const Call& call) {
  VisitFloating(call.outputs[0].dtype(), "transcendental", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T>(call, Function());
  });
}

const RegisterKernel kRegister[] = {
    {kSin, DeviceType::kCuda, Unary<SinOf>},
    {kCos, DeviceType::kCuda, Unary<CosOf>},
    {kSigmoid, DeviceType::kCuda, Unary<SigmoidFunction>},
    {kErf, DeviceType::kCuda, Unary<ErfOf>},
    {kSigmoidGrad, DeviceType::kCuda, Gradient<SigmoidGradOf>},
    {kErfGrad, DeviceType::kCuda, Gradient<ErfGradOf>},
};

}  // namespace
}  // namespace weft
