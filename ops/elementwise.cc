#include "ops/elementwise.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ops/reduce.h"
#include "ops/sharding_rule.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

bool IsNumeric(DType dtype) { return IsFloating(dtype) || dtype == DType::kI32 || dtype == DType::kI64; }

// The common shape under NumPy's rule.
TensorTypes InferBroadcast(const char* name, const TensorType& a, const TensorType& b, bool floating) {
  WEFT_REQUIRE(a.dtype == b.dtype, name, ": expected operands of one dtype, got ", a.ToString(), " and ",
               b.ToString());
  WEFT_REQUIRE(floating ? IsFloating(a.dtype) : IsNumeric(a.dtype), name, ": expected a ",
               floating ? "floating" : "floating, i32 or i64", " dtype, got ", a.ToString());
  const TensorType& longer = a.ndim() >= b.ndim() ? a : b;
  const TensorType& shorter = a.ndim() >= b.ndim() ? b : a;
  TensorType result = longer;
  const int shift = longer.ndim() - shorter.ndim();
  for (int dim = 0; dim < shorter.ndim(); ++dim) {
    const int64_t extent = shorter.shape[dim];
    int64_t& common = result.shape[shift + dim];
    WEFT_REQUIRE(extent == common || extent == 1 || common == 1, name, ": ", a.ToString(), " and ",
                 b.ToString(), " do not broadcast: counted from the last, their dim ",
                 shorter.ndim() - 1 - dim, " is neither equal nor 1");
    if (common == 1) common = extent;
  }
  return {result};
}

template <const char* const& kName, bool kFloating>
TensorTypes InferBinary(Operands operands, const NoAttributes&) {
  return InferBroadcast(kName, operands[0], operands[1], kFloating);
}

std::string RuleBinary(Operands operands, const NoAttributes&) { return BroadcastRule(operands); }

// Any number of floating operands of one type.
template <const char* const& kName, class A = NoAttributes>
TensorTypes InferSame(Operands operands, const A&) {
  for (const TensorType& operand : operands) {
    WEFT_REQUIRE(IsFloating(operand.dtype), kName, ": expected a floating dtype, got ", operand.ToString());
    WEFT_REQUIRE(operand == operands[0], kName, ": expected operands of one type, got ",
                 operands[0].ToString(), " and ", operand.ToString());
  }
  return {operands[0]};
}

template <class A = NoAttributes>
std::string RuleSame(Operands operands, const A&) {
  return ElementwiseRule(static_cast<int>(operands.size()), /*num_outputs=*/1, operands[0].ndim());
}

// Sums the dims along which `operand` was broadcast, and delivers its gradient.
void SetGradSummed(GradContext<NoAttributes, NoScalars>& context, int operand, Value gradient) {
  const Shape& shape = context.operand_type(operand).shape;
  if (context.TypeOf(gradient).shape != shape) gradient = context.Emit(kSumTo, {gradient}, {.shape = shape});
  context.SetGrad(operand, gradient);
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
  Value gradient = context.grad();
  const Shape& shape = context.operand_type(1).shape;
  if (context.TypeOf(gradient).shape != shape) gradient = context.Emit(kSumTo, {gradient}, {.shape = shape});
  context.SetGrad(1, context.Emit(kNeg, {gradient}));
}

void BackwardMul(Context& context) {
  if (context.Wants(0)) SetGradSummed(context, 0, context.Emit(kMul, {context.grad(), context.saved("b")}));
  if (context.Wants(1)) SetGradSummed(context, 1, context.Emit(kMul, {context.grad(), context.saved("a")}));
}

void BackwardDiv(Context& context) {
  if (!context.Wants(0) && !context.Wants(1)) return;
  const Value da = context.Emit(kDiv, {context.grad(), context.saved("b")});
  if (context.Wants(0)) SetGradSummed(context, 0, da);
  if (context.Wants(1))
    SetGradSummed(context, 1, context.Emit(kNeg, {context.Emit(kMul, {da, context.saved("y")})}));
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

void BackwardSqrt(Context& context) {
  if (!context.Wants(0)) return;
  const Value quotient = context.Emit(kDiv, {context.grad(), context.saved("y")});
  context.SetGrad(0, context.Emit(kScale, {quotient}, {}, {.factor = 0.5}));
}

void BackwardRsqrt(Context& context) {
  if (!context.Wants(0)) return;
  const Value y = context.saved("y");
  const Value cube = context.Emit(kMul, {y, context.Emit(kSquare, {y})});
  context.SetGrad(0,
                  context.Emit(kScale, {context.Emit(kMul, {context.grad(), cube})}, {}, {.factor = -0.5}));
}

void BackwardTanh(Context& context) {
  if (!context.Wants(0)) return;
  const Value lost = context.Emit(kMul, {context.grad(), context.Emit(kSquare, {context.saved("y")})});
  context.SetGrad(0, context.Emit(kSub, {context.grad(), lost}));
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

TensorType F32(const Shape& shape) { return {DType::kF32, shape}; }

// Same shapes, a bias, a scalar, both sides broadcast, extents of 1.
template <bool kAwayFromZero>
std::vector<Sample<>> BinarySamples() {
  const double low = kAwayFromZero ? 0.5 : -1;
  const double high = kAwayFromZero ? 2 : 1;
  std::vector<Sample<>> samples;
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{{{3, 5}, {3, 5}},
                                                                 {{2, 3, 5}, {5}},
                                                                 {{3, 4}, {}},
                                                                 {{4, 1, 3}, {5, 1}},
                                                                 {{1, 5}, {1, 5}},
                                                                 {{1}, {7}}}) {
    samples.push_back({.operands = {{F32(a)}, {F32(b), low, high}}});
  }
  return samples;
}

template <class A, class R>
std::vector<Sample<A, R>> UnarySamples(double low, double high, const A& attributes, const R& scalars) {
  std::vector<Sample<A, R>> samples;
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 7}, Shape{4}, Shape{}}) {
    samples.push_back({.operands = {{F32(shape), low, high}}, .attributes = attributes, .scalars = scalars});
  }
  return samples;
}

std::vector<Sample<>> SignedSamples() { return UnarySamples(-1, 1, NoAttributes(), NoScalars()); }
std::vector<Sample<>> PositiveSamples() { return UnarySamples(0.5, 2, NoAttributes(), NoScalars()); }

// One call on each side of the kink.
std::vector<Sample<>> ReluSamples() {
  return {{.operands = {{F32({3, 5}), 0.25, 1}}}, {.operands = {{F32({1, 7}), -1, -0.25}}}};
}

std::vector<Sample<GeluAttributes>> GeluSamples() {
  std::vector<Sample<GeluAttributes>> samples = UnarySamples(-2, 2, GeluAttributes(), NoScalars());
  samples.push_back({.operands = {{F32({3, 5}), -2, 2}}, .attributes = {.exact = true}});
  return samples;
}

std::vector<Sample<NoAttributes, ScaleScalars>> ScaleSamples() {
  return UnarySamples(-1, 1, NoAttributes(), ScaleScalars{.factor = -1.5});
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
constexpr const char* kSiluGradName = "silu_grad";
constexpr const char* kGeluGradName = "gelu_grad";

// What functions of one operand have in common.
template <const char* const& kName>
constexpr OpFunctions<> Unary(const char* linear, const char* saves, void (*backward)(Context&),
                              std::vector<Sample<>> (*samples)()) {
  return {.name = kName,
          .operands = "x",
          .infer = InferSame<kName>,
          .rule = RuleSame,
          .linear = linear,
          .saves = saves,
          .backward = backward,
          .samples = samples};
}

}  // namespace

constinit const Op<> kAdd = {{.name = kAddName,
                              .operands = "a b",
                              .infer = InferBinary<kAddName, false>,
                              .rule = RuleBinary,
                              .linear = "{a b}",
                              .backward = BackwardAdd,
                              .samples = BinarySamples<false>}};
constinit const Op<> kSub = {{.name = kSubName,
                              .operands = "a b",
                              .infer = InferBinary<kSubName, false>,
                              .rule = RuleBinary,
                              .linear = "{a b}",
                              .backward = BackwardSub,
                              .samples = BinarySamples<false>}};
constinit const Op<> kMul = {{.name = kMulName,
                              .operands = "a b",
                              .infer = InferBinary<kMulName, false>,
                              .rule = RuleBinary,
                              .linear = "{a}{b}",
                              .saves = "a b",
                              .backward = BackwardMul,
                              .samples = BinarySamples<false>}};
constinit const Op<> kDiv = {{.name = kDivName,
                              .operands = "a b",
                              .infer = InferBinary<kDivName, true>,
                              .rule = RuleBinary,
                              .linear = "{a}",
                              .saves = "b y",
                              .backward = BackwardDiv,
                              .samples = BinarySamples<true>}};

constinit const Op<> kNeg = {Unary<kNegName>("{x}", "", BackwardNeg, SignedSamples)};
constinit const Op<> kExp = {Unary<kExpName>("", "y", BackwardExp, SignedSamples)};
constinit const Op<> kLog = {Unary<kLogName>("", "x", BackwardLog, PositiveSamples)};
constinit const Op<> kSqrt = {Unary<kSqrtName>("", "y", BackwardSqrt, PositiveSamples)};
constinit const Op<> kRsqrt = {Unary<kRsqrtName>("", "y", BackwardRsqrt, PositiveSamples)};
constinit const Op<> kTanh = {Unary<kTanhName>("", "y", BackwardTanh, SignedSamples)};
constinit const Op<> kSquare = {Unary<kSquareName>("", "x", BackwardSquare, SignedSamples)};
constinit const Op<> kRelu = {Unary<kReluName>("", "y", BackwardRelu, ReluSamples)};
constinit const Op<> kSilu = {Unary<kSiluName>("", "x", BackwardSilu, SignedSamples)};

constinit const Op<GeluAttributes> kGelu = {{.name = kGeluName,
                                             .operands = "x",
                                             .infer = InferSame<kGeluName, GeluAttributes>,
                                             .rule = RuleSame<GeluAttributes>,
                                             .saves = "x",
                                             .backward = BackwardGelu,
                                             .samples = GeluSamples}};

constinit const Op<NoAttributes, ScaleScalars> kScale = {{.name = kScaleName,
                                                          .operands = "x",
                                                          .infer = InferSame<kScaleName>,
                                                          .rule = RuleSame,
                                                          .linear = "{x}",
                                                          .backward = BackwardScale,
                                                          .samples = ScaleSamples}};

constinit const Op<> kReluGrad = {{.name = kReluGradName,
                                   .operands = "y dy",
                                   .outputs = "dx",
                                   .infer = InferSame<kReluGradName>,
                                   .rule = RuleSame,
                                   .linear = "{dy}",
                                   .samples = GradSamples}};
constinit const Op<> kSiluGrad = {{.name = kSiluGradName,
                                   .operands = "x dy",
                                   .outputs = "dx",
                                   .infer = InferSame<kSiluGradName>,
                                   .rule = RuleSame,
                                   .linear = "{dy}",
                                   .samples = GradSamples}};
constinit const Op<GeluAttributes> kGeluGrad = {{.name = kGeluGradName,
                                                 .operands = "x dy",
                                                 .outputs = "dx",
                                                 .infer = InferSame<kGeluGradName, GeluAttributes>,
                                                 .rule = RuleSame<GeluAttributes>,
                                                 .linear = "{dy}",
                                                 .samples = GeluGradSamples}};

}  // namespace weft
