#include "ops/elementwise/select.h"

#include "ops/cpu/spans/map_elements.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Where(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    // A choice and not a sum of products with 0 and 1: the element that is not chosen may be inf or nan.
    MapElements<C, 3>(call, [](C condition, C a, C b) { return condition != 0 ? a : b; });
  });
}

void KeepWhere(const KernelCall<KeepWhereAttributes, NoScalars>& call) {
  VisitElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const C value = call.attributes().value ? C(1) : C(0);
    MapElements<C, 2>(call, [value](C condition, C x) { return condition == value ? x : C(0); });
  });
}

// b where it is greater or NaN; else a, which is so where it is NaN.
void Maximum(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C, 2>(call, [](C a, C b) { return a < b || b != b ? b : a; });
  });
}

void Minimum(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C, 2>(call, [](C a, C b) { return a > b || b != b ? b : a; });
  });
}

// Where both are equal, each takes half: the two gradients add up to dy.
void MaximumGrad(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C, 3>(call, [](C a, C b, C dy) { return a < b ? C(0) : a == b ? dy / 2 : dy; });
  });
}

void Clamp(const KernelCall<NoAttributes, ClampScalars>& call) {
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const C min = BoundAs<C>(call.scalars().min);
    const C max = BoundAs<C>(call.scalars().max);
    // nan is neither below nor above, and stays.
    MapElements<C>(call, [min, max](C x) {
      const C raised = x < min ? min : x;
      return raised > max ? max : raised;
    });
  });
}

void ClampGrad(const KernelCall<NoAttributes, ClampScalars>& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const C min = BoundAs<C>(call.scalars().min);
    const C max = BoundAs<C>(call.scalars().max);
    MapElements<C, 2>(call, [min, max](C x, C dy) { return x >= min && x <= max ? dy : C(0); });
  });
}

const RegisterKernel kRegister[] = {
    {kWhere, DeviceType::kCpu, Where},
    {kKeepWhere, DeviceType::kCpu, KeepWhere},
    {kMaximum, DeviceType::kCpu, Maximum},
    {kMinimum, DeviceType::kCpu, Minimum},
    {kMaximumGrad, DeviceType::kCpu, MaximumGrad},
    {kClamp, DeviceType::kCpu, Clamp},
    {kClampGrad, DeviceType::kCpu, ClampGrad},
};

}  // namespace
}  // namespace weft
