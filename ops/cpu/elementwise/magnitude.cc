#include "ops/elementwise/magnitude.h"

#include <cmath>

#include "ops/cpu/spans/map_elements.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Abs(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<C>) {
      MapElements<C>(call, [](C x) { return x < 0 ? WrappingSub(C(0), x) : x; });
    } else {
      MapElements<C>(call, [](C x) { return std::abs(x); });
    }
  });
}

// A difference of two comparisons: no branch, and 0 for nan.
void Sign(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C>(call, [](C x) { return (x > 0 ? C(1) : C(0)) - (x < 0 ? C(1) : C(0)); });
  });
}

// At 0 there is no slope; 0 is taken, the middle of those that would do.
void AbsGrad(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C, 2>(call, [](C x, C dy) { return x > 0 ? dy : x < 0 ? -dy : C(0); });
  });
}

const RegisterKernel kRegister[] = {
    {kAbs, DeviceType::kCpu, Abs},
    {kSign, DeviceType::kCpu, Sign},
    {kAbsGrad, DeviceType::kCpu, AbsGrad},
};

}  // namespace
}  // namespace weft
