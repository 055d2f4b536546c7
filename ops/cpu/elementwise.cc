#include "ops/elementwise.h"

#include <cmath>
#include <numbers>

#include "ops/cpu/element_blocks.h"
#include "ops/cpu/float_spans.h"
#include "ops/kernel.h"

namespace weft {
namespace {

// gelu's inner argument sqrt(2 / pi) * (x + 0.044715 x^3), and its derivative.
constexpr double kCubic = 0.044715;
const double kRootTwoOverPi = std::sqrt(2 / std::numbers::pi);

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double GeluTanh(double x) { return x / 2 * (1 + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x))); }

double GeluTanhGrad(double x) {
  const double t = std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kCubic * x * x);
}

template <class C>
C GeluErf(C x) {
  return x / 2 * std::erfc(x * static_cast<C>(-1 / std::numbers::sqrt2));
}

// The normal distribution plus x times its density.
template <class C>
C GeluErfGrad(C x) {
  const C distribution = std::erfc(x * static_cast<C>(-1 / std::numbers::sqrt2)) / 2;
  return distribution +
         x * std::exp(-x * x / 2) * static_cast<C>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
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
      return a <= 0 ? 0 : b;
    case BinaryFunction::kGeluGrad:
      return b * GeluTanhGrad(a);
    case BinaryFunction::kSiluGrad:
      return b * Sigmoid(a) * (1 + a * Sigmoid(-a));
  }
}

// Integers wrap: computed unsigned, where overflow is defined.
template <BinaryFunction kFunction, class C>
C ApplyInteger(C a, C b) {
  using U = std::make_unsigned_t<C>;
  const U x = static_cast<U>(a);
  const U y = static_cast<U>(b);
  switch (kFunction) {
    case BinaryFunction::kAdd:
      return static_cast<C>(x + y);
    case BinaryFunction::kSub:
      return static_cast<C>(x - y);
    case BinaryFunction::kMul:
      return static_cast<C>(x * y);
    default:
      return 0;  // inference admits floating dtypes only
  }
}

// Runs `span` over blocks of x, as y.
template <class C, class Span>
void MapBlocks(const KernelCallBase& call, const Span& span) {
  const Tensor& y = call.outputs[0];
  ForEachElementBlock<C>(call.context.pool, y.shape(), {{call.inputs[0]}, {y, ElementStream::kWrite}},
                         [&](C* const* spans, int64_t, int64_t n) { span(spans[0], spans[1], n); });
}

template <class C, class Span>
void MapBlockPairs(const KernelCallBase& call, const Span& span) {
  const Tensor& y = call.outputs[0];
  ForEachElementBlock<C>(call.context.pool, y.shape(),
                         {{call.inputs[0]}, {call.inputs[1]}, {y, ElementStream::kWrite}},
                         [&](C* const* spans, int64_t, int64_t n) { span(spans[0], spans[1], spans[2], n); });
}

// The same for a function of one element.
template <class C, class Function>
void MapElements(const KernelCallBase& call, const Function& function) {
  MapBlocks<C>(call, [&](const C* x, C* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = function(x[i]);
  });
}

template <class C, class Function>
void MapElementPairs(const KernelCallBase& call, const Function& function) {
  MapBlockPairs<C>(call, [&](const C* a, const C* b, C* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = function(a[i], b[i]);
  });
}

template <UnaryFunction kFunction>
void UnaryOf(const KernelCallBase& call) {
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    if constexpr (std::is_same_v<C, float>) {
      MapBlocks<float>(call, FloatSpan(kFunction));
    } else if constexpr (std::is_same_v<C, double>) {
      MapElements<double>(call, [](double x) { return Apply<kFunction>(x); });
    }
  });
}

template <BinaryFunction kFunction>
void BinaryOf(const KernelCallBase& call) {
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    if constexpr (std::is_same_v<C, float>) {
      MapBlockPairs<float>(call, FloatSpan(kFunction));
    } else if constexpr (std::is_same_v<C, double>) {
      MapElementPairs<double>(call, [](double a, double b) { return Apply<kFunction>(a, b); });
    } else {
      MapElementPairs<C>(call, [](C a, C b) { return ApplyInteger<kFunction, C>(a, b); });
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
  if (!call.attributes().exact) return UnaryOf<UnaryFunction::kGelu>(call);
  if (call.outputs[0].dtype() == DType::kF64) return MapElements<double>(call, GeluErf<double>);
  MapElements<float>(call, GeluErf<float>);
}

void GeluGrad(const KernelCall<GeluAttributes, NoScalars>& call) {
  if (!call.attributes().exact) return BinaryOf<BinaryFunction::kGeluGrad>(call);
  if (call.outputs[0].dtype() == DType::kF64) {
    return MapElementPairs<double>(call, [](double x, double dy) { return dy * GeluErfGrad(x); });
  }
  MapElementPairs<float>(call, [](float x, float dy) { return dy * GeluErfGrad(x); });
}

void Scale(const KernelCall<NoAttributes, ScaleScalars>& call) {
  const double factor = call.scalars().factor;
  if (call.outputs[0].dtype() == DType::kF64) {
    return MapElements<double>(call, [factor](double x) { return x * factor; });
  }
  MapElements<float>(call, [factor = static_cast<float>(factor)](float x) { return x * factor; });
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
    {kSiluGrad, DeviceType::kCpu, Binary<BinaryFunction::kSiluGrad>},
    {kGeluGrad, DeviceType::kCpu, GeluGrad},
};

}  // namespace
}  // namespace weft
