#include "ops/elementwise/power.h"

#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_op.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/elementwise/select.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

// The power itself is computed again: it costs no more than the logarithm beside it, and need not be kept.
void BackwardPow(GradContext<NoAttributes, NoScalars>& context) {
  if (!context.Wants(0) && !context.Wants(1)) return;
  const Value a = context.saved("a");
  const Value b = context.saved("b");
  if (context.Wants(0)) SetGradSummed(context, 0, context.Emit(kPowBaseGrad, {a, b, context.grad()}));
  if (context.Wants(1)) SetGradSummed(context, 1, context.Emit(kPowExponentGrad, {a, b, context.grad()}));
}

void BackwardPowScalar(GradContext<NoAttributes, PowerScalars>& context) {
  if (!context.Wants(0)) return;
  context.SetGrad(0,
                  context.Emit(kPowScalarGrad, {context.saved("x"), context.grad()}, {}, context.scalars()));
}

// Of da = dy b a^(b - 1) and db = dy a^b log a: each other's, of exponents one lower.

using Context = GradContext<NoAttributes, NoScalars>;

// dy a^(b - 1) + dy b a^(b - 1) log a, of p = g dy: what both have as the derivative by the other operand.
Value MixedPowGrad(Context& context, Value a, Value b, Value lower, Value p) {
  const Value power = context.Emit(kMul, {p, context.Emit(kPow, {a, lower})});
  const Value logarithm = context.Emit(kPowExponentGrad, {a, lower, context.Emit(kMul, {p, b})});
  return context.Emit(kAdd, {power, logarithm});
}

template <bool kOfExponent>
void BackwardPowGrad(Context& context) {
  const Value a = context.saved("a");
  const Value b = context.saved("b");
  const Value g = context.grad();
  const Op<>& op = kOfExponent ? kPowExponentGrad : kPowBaseGrad;
  if (context.Wants(2)) SetGradSummed(context, 2, context.Emit(op, {a, b, g}));
  if (!context.Wants(0) && !context.Wants(1)) return;
  const Value p = context.Emit(kMul, {g, context.saved("dy")});
  const Value lower = context.Emit(kShift, {b}, {}, {.shift = -1});
  constexpr int kOther = kOfExponent ? 0 : 1;
  if (context.Wants(kOther)) SetGradSummed(context, kOther, MixedPowGrad(context, a, b, lower, p));
  if (!context.Wants(1 - kOther)) return;
  if (kOfExponent) {
    // a^b log^2 a. Where a is 0 so is the first factor, and the logarithm is kept finite: by the least number of f16,
    // since 1e-37 is 0 there.
    const double least = context.TypeOf(a).dtype == DType::kF16 ? 0x1p-24 : 1e-37;
    const Value log = context.Emit(kLog, {context.Emit(kClamp, {a}, {}, {.min = least})});
    SetGradSummed(context, 1, context.Emit(kMul, {context.Emit(kPowExponentGrad, {a, b, p}), log}));
  } else {
    SetGradSummed(context, 0, context.Emit(kPowBaseGrad, {a, lower, context.Emit(kMul, {p, b})}));
  }
}

// Of dx = dy e x^(e - 1). For an e of 0 that is a constant 0; x^-2, which may be infinite, is not formed.
void BackwardPowScalarGrad(GradContext<NoAttributes, PowerScalars>& context) {
  const Value x = context.saved("x");
  const Value g = context.grad();
  const double exponent = context.scalars().exponent;
  if (context.Wants(1)) context.SetGrad(1, context.Emit(kPowScalarGrad, {x, g}, {}, context.scalars()));
  if (!context.Wants(0)) return;
  const Value p = context.Emit(kMul, {g, context.saved("dy")});
  const double lower = exponent == 0 ? 0 : exponent - 1;
  const Value bent = context.Emit(kPowScalarGrad, {x, p}, {}, {.exponent = lower});
  context.SetGrad(0, context.Emit(kScale, {bent}, {}, {.factor = exponent}));
}

std::vector<Sample<>> PowSamples() {
  std::vector<Sample<>> samples =
      BinarySamples({.type = {}, .low = 0.5, .high = 2}, {.type = {}, .low = -2, .high = 2});
  samples.push_back({.operands = {{{DType::kI32, {4, 3}}, -3, 4}, {{DType::kI32, {3}}, -2, 4}}});
  return samples;
}

std::vector<Sample<>> PowGradSamples() {
  std::vector<Sample<>> samples;
  for (const auto& [a, b] : BroadcastSampleShapes()) {
    const TensorType types[] = {{DType::kF32, a}, {DType::kF32, b}};
    const Shape common = BroadcastShape("pow", types);
    samples.push_back({.operands = {{types[0], 0.5, 2}, {types[1], -2, 2}, {{DType::kF32, common}}}});
  }
  return samples;
}

// Exponents with a path of their own, and others; not 1, for which alone the op is linear.
std::vector<Sample<NoAttributes, PowerScalars>> PowScalarSamples() {
  auto samples = SameSamples(1, 0.5, 2, NoAttributes(), PowerScalars{.exponent = 1.7});
  for (double exponent : {0.0, 0.5, 2.0, 3.0, -0.5, -1.0, -2.0, 5.0}) {
    samples.push_back({.operands = {{{DType::kF32, {3, 2}}, 0.5, 2}}, .scalars = {.exponent = exponent}});
  }
  samples.push_back({.operands = {{{DType::kF32, {3, 2}}, -2, -0.5}}, .scalars = {.exponent = 3}});
  samples.push_back({.operands = {{{DType::kI64, {5}}, -4, 4}}, .scalars = {.exponent = 4}});
  return samples;
}

std::vector<Sample<NoAttributes, PowerScalars>> PowScalarGradSamples() {
  auto samples = SameSamples(2, 0.5, 2, NoAttributes(), PowerScalars{.exponent = 1.7});
  samples.push_back(
      {.operands = {{{DType::kF32, {3, 2}}, -2, 2}, {{DType::kF32, {3, 2}}}}, .scalars = {.exponent = 3}});
  return samples;
}

}  // namespace

constinit const Op<> kPow = {{
    .name = "pow",
    .operands = "a b",
    .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
      return {BroadcastType("pow", operands, Admits::kNumeric)};
    },
    .rule = RuleBroadcast,
    .saves = "a b",
    .backward = BackwardPow,
    .samples = PowSamples,
}};

constinit const Op<> kPowBaseGrad = {{
    .name = "pow_base_grad",
    .operands = "a b dy",
    .outputs = "da",
    .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
      return {BroadcastType("pow_base_grad", operands, Admits::kFloating)};
    },
    .rule = RuleBroadcast,
    .linear = "{dy}",
    .saves = "a b dy",
    .backward = BackwardPowGrad</*kOfExponent=*/false>,
    .samples = PowGradSamples,
}};

constinit const Op<> kPowExponentGrad = {
    {.name = "pow_exponent_grad",
     .operands = "a b dy",
     .outputs = "db",
     .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
       return {BroadcastType("pow_exponent_grad", operands, Admits::kFloating)};
     },
     .rule = RuleBroadcast,
     .linear = "{dy}",
     .saves = "a b dy",
     .backward = BackwardPowGrad</*kOfExponent=*/true>,
     .samples = PowGradSamples}};

constinit const Op<NoAttributes, PowerScalars> kPowScalar = {
    {.name = "pow_scalar",
     .operands = "x",
     .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
       return {SameType("pow_scalar", operands, Admits::kNumeric)};
     },
     .rule = RuleSame,
     .saves = "x",
     .backward = BackwardPowScalar,
     .samples = PowScalarSamples}};

constinit const Op<NoAttributes, PowerScalars> kPowScalarGrad = {
    {.name = "pow_scalar_grad",
     .operands = "x dy",
     .outputs = "dx",
     .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
       return {SameType("pow_scalar_grad", operands, Admits::kFloating)};
     },
     .rule = RuleSame,
     .linear = "{dy}",
     .saves = "x dy",
     .backward = BackwardPowScalarGrad,
     .samples = PowScalarGradSamples}};

}  // namespace weft
