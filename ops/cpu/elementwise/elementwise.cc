#include "ops/elementwise/elementwise.h"

#include <cmath>
#include <numbers>

#include "absl/algorithm/container.h"
#include "ops/cpu/spans/float_spans.h"
#include "ops/cpu/spans/map_elements.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// gelu's inner argument sqrt(2 / pi) * (x + 0.044715 x^3), and its derivative.
constexpr double kCubic = 0.044715;
const double kRootTwoOverPi = std::sqrt(2 / std::numbers::pi);

// exp may overflow here: 1 / inf is the 0 that the sigmoid has there.
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double GeluTanh(double x) { return x / 2 * (1 + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x))); }

double GeluTanhGrad(double x) {
  const double t = std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kCubic * x * x);
}

// erfc, not 1 + erf: for x far below 0 that difference would have no digits left.
double GeluErf(double x) { return x / 2 * std::erfc(x * (-1 / std::numbers::sqrt2)); }

// The normal distribution plus x times its density.
double GeluErfGrad(double x) {
  const double distribution = std::erfc(x * (-1 / std::numbers::sqrt2)) / 2;
  return distribution + x * std::exp(-x * x / 2) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
}

template <UnaryFunction kFunction>
double Apply(double x) {
  switch (kFunction) {
    case UnaryFunction::kNeg:
      return -x;
    case UnaryFunction::kExp:
      return std::exp(x);
    case UnaryFunction::kLog:
      return std::log(x);
    case UnaryFunction::kSqrt:
      return std::sqrt(x);
    case UnaryFunction::kRsqrt:
      return 1 / std::sqrt(x);
    case UnaryFunction::kTanh:
      return std::tanh(x);
    case UnaryFunction::kSquare:
      return x * x;
    case UnaryFunction::kRelu:
      return x < 0 ? 0 : x;
    case UnaryFunction::kGelu:
      return GeluTanh(x);
    case UnaryFunction::kGeluErf:
      return GeluErf(x);
    case UnaryFunction::kSilu:
      return x * Sigmoid(x);
  }
}

template <BinaryFunction kFunction>
double Apply(double a, double b) {
  switch (kFunction) {
    case BinaryFunction::kAdd:
      return a + b;
    case BinaryFunction::kSub:
      return a - b;
    case BinaryFunction::kMul:
      return a * b;
    case BinaryFunction::kDiv:
      return a / b;
    case BinaryFunction::kReluGrad:
      // `a` is relu's y here, which is saved instead of x: 0 or less exactly where x is; of nan, b.
      return a <= 0 ? 0 : b;
    case BinaryFunction::kGeluGrad:
      return b * GeluTanhGrad(a);
    case BinaryFunction::kGeluErfGrad:
      return b * GeluErfGrad(a);
    case BinaryFunction::kSiluGrad:
      // s (1 + x (1 - s)), with 1 - s as the sigmoid of -x: no digits are lost where s is near 1.
      return b * Sigmoid(a) * (1 + a * Sigmoid(-a));
  }
}

template <BinaryFunction kFunction, class C>
C ApplyInteger(C a, C b) {
  switch (kFunction) {
    case BinaryFunction::kAdd:
      return WrappingAdd(a, b);
    case BinaryFunction::kSub:
      return WrappingSub(a, b);
    case BinaryFunction::kMul:
      return WrappingMul(a, b);
    default:
      return 0;  // inference admits floating dtypes only
  }
}

// Whether there are bf16 numbers alone, which need no wider blocks on the way.
// Floats and bf16 go through vectors chosen at run time (float_spans), doubles through libm, one by one.
bool AllBF16(const KernelCallBase& call) {
  if (call.outputs[0].dtype() != DType::kBF16) return false;
  return absl::c_all_of(call.inputs, [](const Tensor& x) { return x.dtype() == DType::kBF16; });
}

// Integers wrap, by unsigned arithmetic, since overflow of signed numbers is undefined. There are kernels of
// theirs for negation alone; the other functions are of floating types.
template <UnaryFunction kFunction>
void UnaryOf(const KernelCallBase& call) {
  if (AllBF16(call)) return MapSpans<BFloat16, 1>(call, BFloat16Span(kFunction));
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    if constexpr (std::is_same_v<C, float>) {
      MapSpans<float, 1>(call, FloatSpan(kFunction));
    } else if constexpr (std::is_same_v<C, double>) {
      MapElements<double>(call, [](double x) { return Apply<kFunction>(x); });
    } else if constexpr (kFunction == UnaryFunction::kNeg) {
      MapElements<C>(call, [](C x) { return WrappingSub(C(0), x); });
    }
  });
}

template <BinaryFunction kFunction>
void BinaryOf(const KernelCallBase& call) {
  if (AllBF16(call)) return MapSpans<BFloat16, 2>(call, BFloat16Span(kFunction));
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    if constexpr (std::is_same_v<C, float>) {
      MapSpans<float, 2>(call, FloatSpan(kFunction));
    } else if constexpr (std::is_same_v<C, double>) {
      MapElements<double, 2>(call, [](double a, double b) { return Apply<kFunction>(a, b); });
    } else {
      MapElements<C, 2>(call, [](C a, C b) { return ApplyInteger<kFunction, C>(a, b); });
    }
  });
}

template <UnaryFunction kFunction>
void Unary(const KernelCall<NoAttributes, NoScalars>& call) {
  UnaryOf<kFunction>(call);
}

template <BinaryFunction kFunction>
void Binary(const KernelCall<NoAttributes, NoScalars>& call) {
  BinaryOf<kFunction>(call);
}

void Gelu(const KernelCall<GeluAttributes, NoScalars>& call) {
  if (call.attributes().exact) {
    UnaryOf<UnaryFunction::kGeluErf>(call);
  } else {
    UnaryOf<UnaryFunction::kGelu>(call);
  }
}

void GeluGrad(const KernelCall<GeluAttributes, NoScalars>& call) {
  if (call.attributes().exact) {
    BinaryOf<BinaryFunction::kGeluErfGrad>(call);
  } else {
    BinaryOf<BinaryFunction::kGeluGrad>(call);
  }
}

// Not 1 - y^2, of which little is left where |y| is near 1: there the small factor is exact.
void TanhGrad(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitFloatingElementType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapElements<C, 2>(call, [](C y, C dy) { return dy * ((1 - y) * (1 + y)); });
  });
}

// The factor is rounded to the compute type once: for halves that is float, so that a factor like 0.1 is not
// cut to 8 bits.
void Scale(const KernelCall<NoAttributes, ScaleScalars>& call) {
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const C factor = NumberAs<C>("scale", call.scalars().factor);
    if constexpr (std::is_integral_v<C>) {
      MapElements<C>(call, [factor](C x) { return WrappingMul(x, factor); });
    } else {
      MapElements<C>(call, [factor](C x) { return x * factor; });
    }
  });
}

const RegisterKernel kRegister[] = {
    {kAdd, DeviceType::kCpu, Binary<BinaryFunction::kAdd>},
    {kSub, DeviceType::kCpu, Binary<BinaryFunction::kSub>},
    {kMul, DeviceType::kCpu, Binary<BinaryFunction::kMul>},
    {kDiv, DeviceType::kCpu, Binary<BinaryFunction::kDiv>},
    {kNeg, DeviceType::kCpu, Unary<UnaryFunction::kNeg>},
    {kExp, DeviceType::kCpu, Unary<UnaryFunction::kExp>},
    {kLog, DeviceType::kCpu, Unary<UnaryFunction::kLog>},
    {kSqrt, DeviceType::kCpu, Unary<UnaryFunction::kSqrt>},
    {kRsqrt, DeviceType::kCpu, Unary<UnaryFunction::kRsqrt>},
    {kTanh, DeviceType::kCpu, Unary<UnaryFunction::kTanh>},
    {kSquare, DeviceType::kCpu, Unary<UnaryFunction::kSquare>},
    {kRelu, DeviceType::kCpu, Unary<UnaryFunction::kRelu>},
    {kSilu, DeviceType::kCpu, Unary<UnaryFunction::kSilu>},
    {kGelu, DeviceType::kCpu, Gelu},
    {kScale, DeviceType::kCpu, Scale},
    {kReluGrad, DeviceType::kCpu, Binary<BinaryFunction::kReluGrad>},
    {kTanhGrad, DeviceType::kCpu, TanhGrad},
    {kSiluGrad, DeviceType::kCpu, Binary<BinaryFunction::kSiluGrad>},
    {kGeluGrad, DeviceType::kCpu, GeluGrad},
};

}  // namespace
}  // namespace weft
