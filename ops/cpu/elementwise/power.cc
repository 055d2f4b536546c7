#include "ops/elementwise/power.h"

#include <cmath>

#include "ops/cpu/spans/map_elements.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// By squaring; wraps.
// Integers never go through pow, whose doubles have 53 bits.
template <class C>
C WholePower(C base, C exponent) {
  C result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = WrappingMul(result, base);
    base = WrappingMul(base, base);
  }
  return result;
}

// 1 / base^-exponent, truncated toward zero: 0 but for bases 1 and -1.
template <class C>
C NegativePower(C base, C exponent) {
  if (base == 1 || (base == -1 && exponent % 2 == 0)) return 1;
  return base == -1 ? -1 : 0;
}

template <class C>
C Power(C base, C exponent) {
  if constexpr (std::is_integral_v<C>) {
    return exponent < 0 ? NegativePower(base, exponent) : WholePower(base, exponent);
  } else {
    return std::pow(base, exponent);
  }
}

void Pow(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C, 2>(call, Power<C>);
  });
}

void PowBaseGrad(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    // 0 for b = 0 whatever a: 0 * a^-1 would be nan at a = 0, where a^0 = 1 is flat.
    MapElements<C, 3>(call, [](C a, C b, C dy) { return b == 0 ? C(0) : dy * (b * std::pow(a, b - 1)); });
  });
}

void PowExponentGrad(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    // At a = 0 the power is flat in b > 0, where 0 log 0 would be nan.
    MapElements<C, 3>(
        call, [](C a, C b, C dy) { return a == 0 && b >= 0 ? C(0) : dy * (std::pow(a, b) * std::log(a)); });
  });
}

// Calls run(f), f being x -> x^exponent in its cheapest form.
// The form is chosen once per call, so that the loop over elements is of one multiplication or root, and
// not a call of pow.
template <class C, class Run>
void WithPower(double exponent, const Run& run) {
  if (exponent == 0) return run([](C) { return C(1); });
  if (exponent == 1) return run([](C x) { return x; });
  if (exponent == 2) return run([](C x) { return x * x; });
  if (exponent == 3) return run([](C x) { return x * x * x; });
  if (exponent == 0.5) return run([](C x) { return std::sqrt(x); });
  if (exponent == -0.5) return run([](C x) { return 1 / std::sqrt(x); });
  if (exponent == -1) return run([](C x) { return 1 / x; });
  if (exponent == -2) return run([](C x) { return 1 / (x * x); });
  run([e = static_cast<C>(exponent)](C x) { return std::pow(x, e); });
}

void PowScalar(const KernelCall<NoAttributes, PowerScalars>& call) {
  const double number = call.scalars().exponent;
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<C>) {
      WEFT_REQUIRE(number >= 0, "pow_scalar: integers have no powers of ", number);
      const C exponent = NumberAs<C>("pow_scalar", number);
      MapElements<C>(call, [exponent](C x) { return WholePower(x, exponent); });
    } else {
      WithPower<C>(number, [&](const auto& power) { MapElements<C>(call, power); });
    }
  });
}

void PowScalarGrad(const KernelCall<NoAttributes, PowerScalars>& call) {
  const double exponent = call.scalars().exponent;
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    if (exponent == 0) return MapElements<C, 2>(call, [](C, C) { return C(0); });
    WithPower<C>(exponent - 1, [&](const auto& power) {
      MapElements<C, 2>(call,
                        [e = static_cast<C>(exponent), power](C x, C dy) { return dy * (e * power(x)); });
    });
  });
}

const RegisterKernel kRegister[] = {
    {kPow, DeviceType::kCpu, Pow},
    {kPowBaseGrad, DeviceType::kCpu, PowBaseGrad},
    {kPowExponentGrad, DeviceType::kCpu, PowExponentGrad},
    {kPowScalar, DeviceType::kCpu, PowScalar},
    {kPowScalarGrad, DeviceType::kCpu, PowScalarGrad},
};

}  // namespace
}  // namespace weft
