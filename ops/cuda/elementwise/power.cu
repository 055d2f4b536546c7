#include <cuda_runtime.h>

#include <cmath>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/elementwise/power.h"
#include "ops/op/kernel.h"
#include "ops/op/number_as.h"
#include "runtime/base/wrapping.h"

namespace weft {
namespace {

// By squaring; wraps.
// Exact modulo the type's range, which pow of doubles is not beyond 53 bits.
template <class C>
__device__ C WholePower(C base, C exponent) {
  C result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = WrappingMul(result, base);
    base = WrappingMul(base, base);
  }
  return result;
}

// 1 / base^-exponent, truncated toward zero: 0 but for bases 1 and -1.
template <class C>
__device__ C NegativePower(C base, C exponent) {
  if (base == 1 || (base == -1 && exponent % 2 == 0)) return 1;
  return base == -1 ? -1 : 0;
}

struct PowOf {
  template <class C>
  __device__ C operator()(C base, C exponent) const {
    if constexpr (std::is_integral_v<C>) {
      return exponent < 0 ? NegativePower(base, exponent) : WholePower(base, exponent);
    } else {
      return std::pow(base, exponent);
    }
  }
};
// 0 for b = 0 whatever a: 0 * a^-1 would be nan at a = 0, where a^0 = 1 is flat.
struct PowBaseGradOf {
  template <class C>
  __device__ C operator()(C a, C b, C dy) const {
    return b == 0 ? C(0) : dy * (b * std::pow(a, b - 1));
  }
};
// 0 at a = 0 and b >= 0, where 0 times the logarithm's -inf would be nan.
struct PowExponentGradOf {
  template <class C>
  __device__ C operator()(C a, C b, C dy) const {
    return a == 0 && b >= 0 ? C(0) : dy * (std::pow(a, b) * std::log(a));
  }
};

// x to a power that is the same for all elements.
// The exponent is a number of the call, so a branch on its form costs nothing, where pow costs tens of
// products.
enum class PowerForm { kZero, kOne, kTwo, kThree, kHalf, kMinusHalf, kMinusOne, kMinusTwo, kAny };

PowerForm FormOf(double exponent) {
  if (exponent == 0) return PowerForm::kZero;
  if (exponent == 1) return PowerForm::kOne;
  if (exponent == 2) return PowerForm::kTwo;
  if (exponent == 3) return PowerForm::kThree;
  if (exponent == 0.5) return PowerForm::kHalf;
  if (exponent == -0.5) return PowerForm::kMinusHalf;
  if (exponent == -1) return PowerForm::kMinusOne;
  return exponent == -2 ? PowerForm::kMinusTwo : PowerForm::kAny;
}

// In its cheapest form; all threads take the same branch.
template <class C>
struct Power {
  PowerForm form;
  C exponent;

  explicit Power(double number) : form(FormOf(number)), exponent(static_cast<C>(number)) {}

  __device__ C operator()(C x) const {
    switch (form) {
      case PowerForm::kZero:
        return 1;
      case PowerForm::kOne:
        return x;
      case PowerForm::kTwo:
        return x * x;
      case PowerForm::kThree:
        return x * x * x;
      case PowerForm::kHalf:
        return std::sqrt(x);
      case PowerForm::kMinusHalf:
        return 1 / std::sqrt(x);
      case PowerForm::kMinusOne:
        return 1 / x;
      case PowerForm::kMinusTwo:
        return 1 / (x * x);
      case PowerForm::kAny:
        break;
    }
    return std::pow(x, exponent);
  }
};

template <class C>
struct WholePowerOf {
  C exponent;

  __device__ C operator()(C x) const { return WholePower(x, exponent); }
};

// dy * exponent * x^(exponent - 1); 0 for an exponent of 0, whatever x.
template <class C>
struct PowerGrad {
  C exponent;
  Power<C> power;

  explicit PowerGrad(double number) : exponent(static_cast<C>(number)), power(number - 1) {}

  __device__ C operator()(C x, C dy) const { return exponent == 0 ? C(0) : dy * (exponent * power(x)); }
};

void Pow(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitNumeric(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T>(call, PowOf());
  });
}

template <class Function>
void PowGrad(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitFloating(call.outputs[0].dtype(), "pow", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T, T>(call, Function());
  });
}

void PowScalar(const KernelCall<NoAttributes, PowerScalars>& call) {
  const double number = call.scalars().exponent;
  VisitNumeric(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ElementValue<T>;
    if constexpr (std::is_integral_v<C>) {
      WEFT_REQUIRE(number >= 0, "pow_scalar: integers have no powers of ", number);
      MapElements<T, T>(call, WholePowerOf<C>{NumberAs<C>("pow_scalar", number)});
    } else {
      MapElements<T, T>(call, Power<C>(number));
    }
  });
}

void PowScalarGrad(const KernelCall<NoAttributes, PowerScalars>& call) {
  VisitFloating(call.outputs[0].dtype(), "pow_scalar", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T>(call, PowerGrad<ElementValue<T>>(call.scalars().exponent));
  });
}

const RegisterKernel kRegister[] = {
    {kPow, DeviceType::kCuda, Pow},
    {kPowBaseGrad, DeviceType::kCuda, PowGrad<PowBaseGradOf>},
    {kPowExponentGrad, DeviceType::kCuda, PowGrad<PowExponentGradOf>},
    {kPowScalar, DeviceType::kCuda, PowScalar},
    {kPowScalarGrad, DeviceType::kCuda, PowScalarGrad},
};

}  // namespace
}  // namespace weft
