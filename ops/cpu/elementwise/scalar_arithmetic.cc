#include "ops/elementwise/scalar_arithmetic.h"

#include "ops/cpu/spans/map_elements.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void ShiftKernel(const KernelCall<NoAttributes, ShiftScalars>& call) {
  const ShiftScalars& scalars = call.scalars();
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const C shift = NumberAs<C>("shift", scalars.shift);
    if constexpr (std::is_integral_v<C>) {
      if (scalars.negate) return MapElements<C>(call, [shift](C x) { return WrappingSub(shift, x); });
      MapElements<C>(call, [shift](C x) { return WrappingAdd(x, shift); });
    } else {
      if (scalars.negate) return MapElements<C>(call, [shift](C x) { return shift - x; });
      MapElements<C>(call, [shift](C x) { return x + shift; });
    }
  });
}

void DivScalarKernel(const KernelCall<NoAttributes, DivScalars>& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    // A division and not a product with the inverse, which would round twice: x / 3 is what users
    // compare with.
    const C divisor = static_cast<C>(call.scalars().divisor);
    MapElements<C>(call, [divisor](C x) { return x / divisor; });
  });
}

void ScalarDivKernel(const KernelCall<NoAttributes, QuotientScalars>& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const C dividend = static_cast<C>(call.scalars().dividend);
    MapElements<C>(call, [dividend](C x) { return dividend / x; });
  });
}

const RegisterKernel kRegister[] = {
    {kShift, DeviceType::kCpu, ShiftKernel},
    {kDivScalar, DeviceType::kCpu, DivScalarKernel},
    {kScalarDiv, DeviceType::kCpu, ScalarDivKernel},
};

}  // namespace
}  // namespace weft
