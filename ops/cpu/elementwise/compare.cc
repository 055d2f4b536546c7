#include "ops/elementwise/compare.h"

#include <cmath>
#include <functional>

#include "ops/cpu/spans/map_elements.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// The operands' dtype decides how: the bool output is converted to.
// In the operands' own type: neighbouring 64-bit integers beyond 2^53 are equal as doubles.
template <class Comparison>
void Compare(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitElementType(call.inputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C, 2>(call, [](C a, C b) { return Comparison()(a, b) ? C(1) : C(0); });
  });
}

// Every float is a double, so one function per class serves both.
template <bool (*kHolds)(double)>
void Classify(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitFloatingElementType(call.inputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C>(call, [](C x) { return kHolds(x) ? C(1) : C(0); });
  });
}

bool IsNan(double x) { return std::isnan(x); }
bool IsFinite(double x) { return std::isfinite(x); }

const RegisterKernel kRegister[] = {
    {kEqual, DeviceType::kCpu, Compare<std::equal_to<>>},
    {kNotEqual, DeviceType::kCpu, Compare<std::not_equal_to<>>},
    {kLess, DeviceType::kCpu, Compare<std::less<>>},
    {kLessEqual, DeviceType::kCpu, Compare<std::less_equal<>>},
    {kGreater, DeviceType::kCpu, Compare<std::greater<>>},
    {kGreaterEqual, DeviceType::kCpu, Compare<std::greater_equal<>>},
    {kIsNan, DeviceType::kCpu, Classify<IsNan>},
    {kIsFinite, DeviceType::kCpu, Classify<IsFinite>},
};

}  // namespace
}  // namespace weft
