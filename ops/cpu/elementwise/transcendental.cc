#include "ops/elementwise/transcendental.h"

#include <cmath>
#include <numbers>

#include "ops/cpu/elementwise/transcendental_spans.h"
#include "ops/cpu/spans/map_elements.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

// By vectors in float, by libm in double.
template <void (*kSpan)(const float*, float*, int64_t), double (*kFunction)(double)>
void Unary(const Call& call) {
  if (call.outputs[0].dtype() == DType::kF64) {
    MapElements<double>(call, [](double x) { return kFunction(x); });
  } else {
    MapSpans<float, 1>(call, kSpan);
  }
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// By libm in float too: Highway has no erf.
void Erf(const Call& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C>(call, [](C x) { return std::erf(x); });
  });
}

// From y, which forward made: no exponential, and x need not be saved.
void SigmoidGrad(const Call& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C, 2>(call, [](C y, C dy) { return dy * ((1 - y) * y); });
  });
}

void ErfGrad(const Call& call) {
  if (call.outputs[0].dtype() != DType::kF64) return MapSpans<float, 2>(call, ErfGradSpan);
  MapElements<double, 2>(
      call, [](double x, double dy) { return dy * (2 * std::numbers::inv_sqrtpi * std::exp(-x * x)); });
}

const RegisterKernel kRegister[] = {
    {kSin, DeviceType::kCpu, Unary<SinSpan, std::sin>},
    {kCos, DeviceType::kCpu, Unary<CosSpan, std::cos>},
    {kSigmoid, DeviceType::kCpu, Unary<SigmoidSpan, Sigmoid>},
    {kErf, DeviceType::kCpu, Erf},
    {kSigmoidGrad, DeviceType::kCpu, SigmoidGrad},
    {kErfGrad, DeviceType::kCpu, ErfGrad},
};

}  // namespace
}  // namespace weft
