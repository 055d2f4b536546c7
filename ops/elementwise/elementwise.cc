#include "ops/elementwise/elementwise.h"

#include <numbers>
#include <vector>

#include "ops/elementwise/elementwise_op.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

template <const char* const& kName, Admits kAdmits>
TensorTypes InferBinary(Operands operands, const NoAttributes&) {
  return {BroadcastType(kName, operands, kAdmits)};
}

// Any number of operands of one type.
template <const char* const& kName, class A = NoAttributes, Admits kAdmits = Admits::kFloating>
TensorTypes InferSame(Operands operands, const A&) {
  return {SameType(kName, operands, kAdmits)};
}

using Context = GradContext<NoAttributes, NoScalars>;

void BackwardAdd(Context& context) {
  for (int operand : {0, 1}) {
    if (context.Wants(operand)) SetGradSummed(context, operand, context.grad());
  }
}

void BackwardSub(Context& context) {
  if (context.Wants(0)) SetGradSummed(context, 0, context.grad());
  if (!context.Wants(1)) return;
  // Summed first: the negation then runs over the smaller tensor.
  context.SetGrad(1, context.Emit(kNeg, {SumToOperand(context, 1, context.grad())}));
}

void BackwardMul(Context& context) {
  if (context.Wants(0)) SetGradSummed(context, 0, context.Emit(kMul, {context.grad(), context.saved("b")}));
  if (context.Wants(1)) SetGradSummed(context, 1, context.Emit(kMul, {context.grad(), context.saved("a")}));
}

// The divisor's is -dy * (y / b): dy / b may leave the dtype's range where that slope does not.
void BackwardDiv(Context& context) {
  const Value b = context.saved("b");
  if (context.Wants(0)) SetGradSummed(context, 0, context.Emit(kDiv, {context.grad(), b}));
  if (!context.Wants(1)) return;
  const Value slope = context.Emit(kDiv, {context.saved("y"), b});
  SetGradSummed(context, 1, context.Emit(kNeg, {context.Emit(kMul, {context.grad(), slope})}));
}

void BackwardNeg(Context& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kNeg, {context.grad()}));
}

void BackwardExp(Context& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kMul, {context.grad(), context.saved("y")}));
}

void BackwardLog(Context& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kDiv, {context.grad(), context.saved("x")}));
}

// dy / (2 y): 2 y is exact and in range, which dy / y may leave though its half does not.
void BackwardSqrt(Context& context) {
  if (!context.Wants(0)) return;
  const Value divisor = context.Emit(kScale, {context.saved("y")}, {}, {.factor = 2});
  context.SetGrad(0, context.Emit(kDiv, {context.grad(), divisor}));
}

// ((dy (-y / 2)) y) y: each product lies between dy and the result, up to a factor of 2, while y^3 may leave
// the range.
void BackwardRsqrt(Context& context) {
  if (!context.Wants(0)) return;
  const Value y = context.saved("y");
  Value gradient = context.Emit(kMul, {context.grad(), context.Emit(kScale, {y}, {}, {.factor = -0.5})});
  for (int power = 0; power < 2; ++power) gradient = context.Emit(kMul, {gradient, y});
  context.SetGrad(0, gradient);
}

void BackwardTanh(Context& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kTanhGrad, {context.saved("y"), context.grad()}));
}

void BackwardSquare(Context& context) {
  if (!context.Wants(0)) return;
  const Value product = context.Emit(kMul, {context.grad(), context.saved("x")});
  context.SetGrad(0, context.Emit(kScale, {product}, {}, {.factor = 2}));
}

void BackwardRelu(Context& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kReluGrad, {context.saved("y"), context.grad()}));
}

void BackwardSilu(Context& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kSiluGrad, {context.saved("x"), context.grad()}));
}

void BackwardGelu(GradContext<GeluAttributes, NoScalars>& context) {
  if (!context.Wants(0)) return;
  context.SetGrad(0, context.Emit(kGeluGrad, {context.saved("x"), context.grad()}, context.attributes()));
}

void BackwardScale(GradContext<NoAttributes, ScaleScalars>& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kScale, {context.grad()}, {}, context.scalars()));
}

// Of the gradients of relu, tanh, silu and gelu: linear in dy, and curved in x as the function is.

void BackwardReluGrad(Context& context) {
  if (context.Wants(1)) context.SetGrad(1, context.Emit(kReluGrad, {context.saved("y"), context.grad()}));
}

// Of dx = dy (1 - y^2).
void BackwardTanhGrad(Context& context) {
  const Value y = context.saved("y");
  const Value g = context.grad();
  if (context.Wants(1)) context.SetGrad(1, context.Emit(kTanhGrad, {y, g}));
  if (!context.Wants(0)) return;
  const Value p = context.Emit(kMul, {g, context.saved("dy")});
  context.SetGrad(0, context.Emit(kScale, {context.Emit(kMul, {p, y})}, {}, {.factor = -2}));
}

// With t = tanh(x / 2), silu'' = (1 - t^2) (2 - x t) / 4.
void BackwardSiluGrad(Context& context) {
  const Value x = context.saved("x");
  const Value g = context.grad();
  if (context.Wants(1)) context.SetGrad(1, context.Emit(kSiluGrad, {x, g}));
  if (!context.Wants(0)) return;
  const Value t = context.Emit(kTanh, {context.Emit(kScale, {x}, {}, {.factor = 0.5})});
  const Value p = context.Emit(kMul, {g, context.saved("dy")});
  const Value q = context.Emit(kTanhGrad, {t, p});
  const Value bent = context.Emit(kMul, {q, context.Emit(kMul, {x, t})});
  context.SetGrad(0, context.Emit(kSub, {context.Emit(kScale, {q}, {}, {.factor = 0.5}),
                                         context.Emit(kScale, {bent}, {}, {.factor = 0.25})}));
}

void BackwardGeluGrad(GradContext<GeluAttributes, NoScalars>& context) {
  const Value x = context.saved("x");
  const Value g = context.grad();
  if (context.Wants(1)) context.SetGrad(1, context.Emit(kGeluGrad, {x, g}, context.attributes()));
  if (!context.Wants(0)) return;
  const Value p = context.Emit(kMul, {g, context.saved("dy")});
  context.SetGrad(0, EmitGeluCurvature(context.emitter(), x, p, context.attributes()));
}

TensorType F32(const Shape& shape) { return {DType::kF32, shape}; }

std::vector<Sample<>> SumSamples() { return BinarySamples({}, {}); }
std::vector<Sample<>> QuotientSamples() { return BinarySamples({}, {.type = {}, .low = 0.5, .high = 2}); }
std::vector<Sample<>> SignedSamples() { return SameSamples(1, -1, 1); }
std::vector<Sample<>> PositiveSamples() { return SameSamples(1, 0.5, 2); }

// One call on each side of the kink.
std::vector<Sample<>> ReluSamples() {
  return {{.operands = {{F32({3, 5}), 0.25, 1}}}, {.operands = {{F32({1, 7}), -1, -0.25}}}};
}

std::vector<Sample<GeluAttributes>> GeluSamples() {
  std::vector<Sample<GeluAttributes>> samples = SameSamples(1, -2, 2, GeluAttributes());
  samples.push_back({.operands = {{F32({3, 5}), -2, 2}}, .attributes = {.exact = true}});
  return samples;
}

std::vector<Sample<NoAttributes, ScaleScalars>> ScaleSamples() {
  const ScaleScalars scalars = {.factor = -1.5};
  std::vector<Sample<NoAttributes, ScaleScalars>> samples = SameSamples(1, -1, 1, NoAttributes(), scalars);
  samples.push_back({.operands = {{{DType::kI32, {3, 4}}, -5, 5}}, .scalars = {.factor = 3}});
  return samples;
}

std::vector<Sample<>> GradSamples() {
  return {{.operands = {{F32({3, 5}), -2, 2}, {F32({3, 5})}}},
          {.operands = {{F32({1, 7}), -2, 2}, {F32({1, 7})}}}};
}

std::vector<Sample<GeluAttributes>> GeluGradSamples() {
  return {{.operands = {{F32({3, 5}), -2, 2}, {F32({3, 5})}}},
          {.operands = {{F32({1, 7}), -2, 2}, {F32({1, 7})}}, .attributes = {.exact = true}}};
}

// Names as template arguments, so that messages name the op.
constexpr const char* kAddName = "add";
constexpr const char* kSubName = "sub";
constexpr const char* kMulName = "mul";
constexpr const char* kDivName = "div";
constexpr const char* kNegName = "neg";
constexpr const char* kExpName = "exp";
constexpr const char* kLogName = "log";
constexpr const char* kSqrtName = "sqrt";
constexpr const char* kRsqrtName = "rsqrt";
constexpr const char* kTanhName = "tanh";
constexpr const char* kSquareName = "square";
constexpr const char* kReluName = "relu";
constexpr const char* kSiluName = "silu";
constexpr const char* kGeluName = "gelu";
constexpr const char* kScaleName = "scale";
constexpr const char* kReluGradName = "relu_grad";
constexpr const char* kTanhGradName = "tanh_grad";
constexpr const char* kSiluGradName = "silu_grad";
constexpr const char* kGeluGradName = "gelu_grad";

// What functions of one operand have in common.
template <const char* const& kName, Admits kAdmits = Admits::kFloating>
constexpr OpFunctions<> Unary(const char* linear, const char* saves, void (*backward)(Context&),
                              std::vector<Sample<>> (*samples)()) {
  return {.name = kName,
          .operands = "x",
          .infer = InferSame<kName, NoAttributes, kAdmits>,
          .rule = RuleSame,
          .linear = linear,
          .saves = saves,
          .backward = backward,
          .samples = samples};
}

// p phi(x) (2 - x^2), phi the density of the normal distribution.
Value ExactGeluCurvature(Emitter& emitter, Value x, Value p) {
  const auto scaled = [&](Value a, double factor) {
    return emitter.Emit(kScale, {a}, {}, {.factor = factor});
  };
  const Value square = emitter.Emit(kSquare, {x});
  const Value bell = emitter.Emit(kExp, {scaled(square, -0.5)});
  const Value q = scaled(emitter.Emit(kMul, {p, bell}), 0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
  return emitter.Emit(kSub, {scaled(q, 2), emitter.Emit(kMul, {q, square})});
}

// With u = k (x + c x^3) and t = tanh u: p (1 - t^2) (u' + x u'' / 2 - x t u'^2).
Value TanhGeluCurvature(Emitter& emitter, Value x, Value p) {
  const double k = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  constexpr double kCubic = 0.044715;
  const auto mul = [&](Value a, Value b) { return emitter.Emit(kMul, {a, b}); };
  // a (first + second x^2).
  const Value square = emitter.Emit(kSquare, {x});
  const auto times = [&](Value a, double first, double second) {
    const Value whole = emitter.Emit(kScale, {a}, {}, {.factor = first});
    return emitter.Emit(kAdd, {whole, emitter.Emit(kScale, {mul(a, square)}, {}, {.factor = second})});
  };
  const Value t = emitter.Emit(kTanh, {times(x, k, k * kCubic)});
  const Value q = emitter.Emit(kTanhGrad, {t, p});
  const Value bent = times(times(mul(q, mul(x, t)), k, 3 * k * kCubic), k, 3 * k * kCubic);
  return emitter.Emit(kSub, {times(q, k, 6 * k * kCubic), bent});
}

}  // namespace

Value EmitGeluCurvature(Emitter& emitter, Value x, Value p, const GeluAttributes& attributes) {
  return attributes.exact ? ExactGeluCurvature(emitter, x, p) : TanhGeluCurvature(emitter, x, p);
}

constinit const Op<> kAdd = {{
    .name = kAddName,
    .operands = "a b",
    .infer = InferBinary<kAddName, Admits::kNumeric>,
    .rule = RuleBroadcast,
    .linear = "{a b}",
    .backward = BackwardAdd,
    .samples = SumSamples,
}};
constinit const Op<> kSub = {{
    .name = kSubName,
    .operands = "a b",
    .infer = InferBinary<kSubName, Admits::kNumeric>,
    .rule = RuleBroadcast,
    .linear = "{a b}",
    .backward = BackwardSub,
    .samples = SumSamples,
}};
constinit const Op<> kMul = {{
    .name = kMulName,
    .operands = "a b",
    .infer = InferBinary<kMulName, Admits::kNumeric>,
    .rule = RuleBroadcast,
    .linear = "{a}{b}",
    .saves = "a b",
    .backward = BackwardMul,
    .samples = SumSamples,
}};
constinit const Op<> kDiv = {{
    .name = kDivName,
    .operands = "a b",
    .infer = InferBinary<kDivName, Admits::kFloating>,
    .rule = RuleBroadcast,
    .linear = "{a}",
    .saves = "b y",
    .backward = BackwardDiv,
    .samples = QuotientSamples,
}};

constinit const Op<> kNeg = {Unary<kNegName, Admits::kNumeric>("{x}", "", BackwardNeg, SignedSamples)};
constinit const Op<> kExp = {Unary<kExpName>("", "y", BackwardExp, SignedSamples)};
constinit const Op<> kLog = {Unary<kLogName>("", "x", BackwardLog, PositiveSamples)};
constinit const Op<> kSqrt = {Unary<kSqrtName>("", "y", BackwardSqrt, PositiveSamples)};
constinit const Op<> kRsqrt = {Unary<kRsqrtName>("", "y", BackwardRsqrt, PositiveSamples)};
constinit const Op<> kTanh = {Unary<kTanhName>("", "y", BackwardTanh, SignedSamples)};
constinit const Op<> kSquare = {Unary<kSquareName>("", "x", BackwardSquare, SignedSamples)};
constinit const Op<> kRelu = {Unary<kReluName>("", "y", BackwardRelu, ReluSamples)};
constinit const Op<> kSilu = {Unary<kSiluName>("", "x", BackwardSilu, SignedSamples)};

constinit const Op<GeluAttributes> kGelu = {{
    .name = kGeluName,
    .operands = "x",
    .infer = InferSame<kGeluName, GeluAttributes>,
    .rule = RuleSame<GeluAttributes>,
    .saves = "x",
    .backward = BackwardGelu,
    .samples = GeluSamples,
}};

constinit const Op<NoAttributes, ScaleScalars> kScale = {
    {.name = kScaleName,
     .operands = "x",
     .infer = InferSame<kScaleName, NoAttributes, Admits::kNumeric>,
     .rule = RuleSame,
     .linear = "{x}",
     .backward = BackwardScale,
     .samples = ScaleSamples}};

constinit const Op<> kReluGrad = {{
    .name = kReluGradName,
    .operands = "y dy",
    .outputs = "dx",
    .infer = InferSame<kReluGradName>,
    .rule = RuleSame,
    .linear = "{dy}",
    .saves = "y",
    .backward = BackwardReluGrad,
    .samples = GradSamples,
}};
constinit const Op<> kTanhGrad = {{
    .name = kTanhGradName,
    .operands = "y dy",
    .outputs = "dx",
    .infer = InferSame<kTanhGradName>,
    .rule = RuleSame,
    .linear = "{dy}",
    .saves = "y dy",
    .backward = BackwardTanhGrad,
    .samples = GradSamples,
}};
constinit const Op<> kSiluGrad = {{
    .name = kSiluGradName,
    .operands = "x dy",
    .outputs = "dx",
    .infer = InferSame<kSiluGradName>,
    .rule = RuleSame,
    .linear = "{dy}",
    .saves = "x dy",
    .backward = BackwardSiluGrad,
    .samples = GradSamples,
}};
constinit const Op<GeluAttributes> kGeluGrad = {{
    .name = kGeluGradName,
    .operands = "x dy",
    .outputs = "dx",
    .infer = InferSame<kGeluGradName, GeluAttributes>,
    .rule = RuleSame<GeluAttributes>,
    .linear = "{dy}",
    .saves = "x dy",
    .backward = BackwardGeluGrad,
    .samples = GeluGradSamples,
}};

}  // namespace weft
