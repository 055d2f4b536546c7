#include "ops/elementwise/select.h"

#include "ops/elementwise/elementwise_op.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;
using Context = GradContext<NoAttributes, NoScalars>;

void RequireCondition(absl::string_view op, const TensorType& condition) {
  WEFT_REQUIRE(condition.dtype == DType::kBool, op, ": expected a bool condition, got ",
               condition.ToString());
}

TensorTypes InferWhere(Operands operands, const NoAttributes&) {
  RequireCondition("where", operands[0]);
  WEFT_REQUIRE(operands[1].dtype == operands[2].dtype, "where: expected operands of one dtype, got ",
               operands[1].ToString(), " and ", operands[2].ToString());
  return {{operands[1].dtype, BroadcastShape("where", operands)}};
}

void BackwardWhere(Context& context) {
  for (int operand : {1, 2}) {
    if (!context.Wants(operand)) continue;
    const Value kept =
        context.Emit(kKeepWhere, {context.saved("condition"), context.grad()}, {.value = operand == 1});
    SetGradSummed(context, operand, kept);
  }
}

TensorTypes InferKeepWhere(Operands operands, const KeepWhereAttributes&) {
  RequireCondition("keep_where", operands[0]);
  return {{operands[1].dtype, BroadcastShape("keep_where", operands)}};
}

void BackwardKeepWhere(GradContext<KeepWhereAttributes, NoScalars>& context) {
  if (!context.Wants(1)) return;
  SetGradSummed(context, 1,
                context.Emit(kKeepWhere, {context.saved("condition"), context.grad()}, context.attributes()));
}

void BackwardMaximum(Context& context) {
  if (!context.Wants(0) && !context.Wants(1)) return;
  const Value a = context.saved("a");
  const Value b = context.saved("b");
  if (context.Wants(0)) SetGradSummed(context, 0, context.Emit(kMaximumGrad, {a, b, context.grad()}));
  if (context.Wants(1)) SetGradSummed(context, 1, context.Emit(kMaximumGrad, {b, a, context.grad()}));
}

// As of the maximum of -a and -b: a and b change places.
void BackwardMinimum(Context& context) {
  if (!context.Wants(0) && !context.Wants(1)) return;
  const Value a = context.saved("a");
  const Value b = context.saved("b");
  if (context.Wants(0)) SetGradSummed(context, 0, context.Emit(kMaximumGrad, {b, a, context.grad()}));
  if (context.Wants(1)) SetGradSummed(context, 1, context.Emit(kMaximumGrad, {a, b, context.grad()}));
}

void BackwardClamp(GradContext<NoAttributes, ClampScalars>& context) {
  if (!context.Wants(0)) return;
  context.SetGrad(0, context.Emit(kClampGrad, {context.saved("x"), context.grad()}, {}, context.scalars()));
}

// Both are linear in dy, with slopes that are constant almost everywhere.
void BackwardMaximumGrad(Context& context) {
  if (!context.Wants(2)) return;
  SetGradSummed(context, 2,
                context.Emit(kMaximumGrad, {context.saved("a"), context.saved("b"), context.grad()}));
}

void BackwardClampGrad(GradContext<NoAttributes, ClampScalars>& context) {
  if (!context.Wants(1)) return;
  context.SetGrad(1, context.Emit(kClampGrad, {context.saved("x"), context.grad()}, {}, context.scalars()));
}

SampleOperand Bool(const Shape& shape) { return {{DType::kBool, shape}, 0, 2}; }

std::vector<Sample<>> WhereSamples() {
  const auto f32 = [](const Shape& shape) { return SampleOperand{{DType::kF32, shape}}; };
  return {{.operands = {Bool({3, 5}), f32({3, 5}), f32({3, 5})}},
          {.operands = {Bool({5}), f32({2, 3, 5}), f32({})}},
          {.operands = {Bool({3, 1}), f32({4}), f32({3, 4})}},
          {.operands = {Bool({2, 3, 4}), f32({1, 3, 1}), f32({2, 1, 1})}},
          {.operands = {Bool({}), {{DType::kI32, {1, 5}}, -4, 4}, {{DType::kI32, {5}}, -4, 4}}}};
}

std::vector<Sample<KeepWhereAttributes>> KeepWhereSamples() {
  return {{.operands = {Bool({3, 5}), {{DType::kF32, {3, 5}}}}},
          {.operands = {Bool({5}), {{DType::kF32, {3, 1}}}}, .attributes = {.value = false}},
          {.operands = {Bool({1, 4}), {{DType::kF32, {}}}}, .attributes = {.value = false}},
          {.operands = {Bool({}), {{DType::kI64, {5}}, -4, 4}}}};
}

// Integers, so that some are equal.
std::vector<Sample<>> ExtremumSamples() {
  std::vector<Sample<>> samples = BinarySamples({}, {});
  samples.push_back({.operands = {{{DType::kI32, {3, 5}}, 0, 3}, {{DType::kI32, {3, 1}}, 0, 3}}});
  return samples;
}

std::vector<Sample<>> MaximumGradSamples() {
  return {{.operands = {{{DType::kF32, {3, 5}}}, {{DType::kF32, {3, 5}}}, {{DType::kF32, {3, 5}}}}},
          {.operands = {{{DType::kF32, {5}}}, {{DType::kF32, {4, 1}}}, {{DType::kF32, {4, 5}}}}},
          {.operands = {{{DType::kF32, {}}}, {{DType::kF32, {1, 3}}}, {{DType::kF32, {1, 3}}}}}};
}

constexpr ClampScalars kHalf = {.min = -0.5, .max = 0.5};

// On either side of the kinks, and both bounds met.
std::vector<Sample<NoAttributes, ClampScalars>> ClampSamples() {
  auto samples = SameSamples(1, -0.4, 0.4, NoAttributes(), kHalf);
  samples.push_back({.operands = {{{DType::kF32, {3, 5}}, 0.6, 1}}, .scalars = kHalf});
  samples.push_back({.operands = {{{DType::kF32, {3, 5}}, -1, -0.6}}, .scalars = kHalf});
  samples.push_back({.operands = {{{DType::kF32, {3, 5}}, -1, -0.1}}, .scalars = {.min = 0}});
  samples.push_back({.operands = {{{DType::kI32, {7}}, -5, 5}}, .scalars = {.max = 2}});
  return samples;
}

std::vector<Sample<NoAttributes, ClampScalars>> ClampGradSamples() {
  return SameSamples(2, -1, 1, NoAttributes(), kHalf);
}

}  // namespace

constinit const Op<> kWhere = {{
    .name = "where",
    .operands = "condition a b",
    .infer = InferWhere,
    .rule = RuleBroadcast,
    .linear = "{a b}",
    .saves = "condition",
    .backward = BackwardWhere,
    .samples = WhereSamples,
}};

constinit const Op<KeepWhereAttributes> kKeepWhere = {{
    .name = "keep_where",
    .operands = "condition x",
    .infer = InferKeepWhere,
    .rule = RuleBroadcast,
    .linear = "{x}",
    .saves = "condition",
    .backward = BackwardKeepWhere,
    .samples = KeepWhereSamples,
}};

constinit const Op<> kMaximum = {{
    .name = "maximum",
    .operands = "a b",
    .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
      return {BroadcastType("maximum", operands, Admits::kAny)};
    },
    .rule = RuleBroadcast,
    .saves = "a b",
    .backward = BackwardMaximum,
    .samples = ExtremumSamples,
}};

constinit const Op<> kMinimum = {{
    .name = "minimum",
    .operands = "a b",
    .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
      return {BroadcastType("minimum", operands, Admits::kAny)};
    },
    .rule = RuleBroadcast,
    .saves = "a b",
    .backward = BackwardMinimum,
    .samples = ExtremumSamples,
}};

constinit const Op<> kMaximumGrad = {{
    .name = "maximum_grad",
    .operands = "a b dy",
    .outputs = "da",
    .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
      return {BroadcastType("maximum_grad", operands, Admits::kFloating)};
    },
    .rule = RuleBroadcast,
    .linear = "{dy}",
    .saves = "a b",
    .backward = BackwardMaximumGrad,
    .samples = MaximumGradSamples,
}};

constinit const Op<NoAttributes, ClampScalars> kClamp = {
    {.name = "clamp",
     .operands = "x",
     .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
       return {SameType("clamp", operands, Admits::kNumeric)};
     },
     .rule = RuleSame,
     .saves = "x",
     .backward = BackwardClamp,
     .samples = ClampSamples}};

constinit const Op<NoAttributes, ClampScalars> kClampGrad = {
    {.name = "clamp_grad",
     .operands = "x dy",
     .outputs = "dx",
     .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
       return {SameType("clamp_grad", operands, Admits::kFloating)};
     },
     .rule = RuleSame,
     .linear = "{dy}",
     .saves = "x",
     .backward = BackwardClampGrad,
     .samples = ClampGradSamples}};

}  // namespace weft
