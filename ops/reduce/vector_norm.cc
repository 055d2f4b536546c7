#include "ops/reduce/vector_norm.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "ops/declare/reduced_dims.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/magnitude.h"
#include "ops/elementwise/power.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/elementwise/settle.h"
#include "ops/elementwise/term.h"
#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

constexpr double kInf = std::numeric_limits<double>::infinity();

TensorType ResultType(const char* op, const TensorType& x, const NormAttributes& a) {
  WEFT_REQUIRE(IsFloating(x.dtype), op, ": expected a floating dtype, got ", x.ToString());
  WEFT_REQUIRE(!std::isnan(a.p), op, ": p must be a number, got nan");
  const TensorType result = ReducedType(op, x, a.Reduce());
  WEFT_REQUIRE(!std::isinf(a.p) || ReducedCount(x.shape, a.dims) > 0, op, ": ", x.ToString(),
               " is empty along the dims and has no extremum");
  return result;
}

TensorTypes Infer(Operands operands, const NormAttributes& a) {
  return {ResultType("vector_norm", operands[0], a)};
}

std::string Rule(Operands operands, const NormAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim, a.dims), " -> ", KeptFactors(ndim, a.Reduce()));
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const NormAttributes& a,
                 const NoScalars&) {
  const Value sum = emitter.Emit(kPowerSum, {operands[0]}, a);
  return {emitter.Emit(kNormFinish, {sum}, {.p = a.p, .dtype = emitter.TypeOf(operands[0]).dtype})};
}

void Backward(GradContext<NormAttributes, NoScalars>& ctx) {
  const NormAttributes& a = ctx.attributes();
  if (!ctx.grad().defined() || !ctx.Wants(0) || a.p == 0) return;
  const Value x = ctx.saved("x");
  const Value y = ctx.saved("y");
  Term dy = {&ctx.emitter(), ctx.grad()};
  if (std::isinf(a.p)) {
    const DType dtype = dy.type().dtype;
    const Term ties = {&ctx.emitter(), ctx.Emit(kNormTies, {x, y}, a)};
    dy = Cast(Cast(dy, ties.type().dtype) / ties, dtype);
  }
  ctx.SetGrad(0, ctx.Emit(kVectorNormGrad, {x, y, dy.value}, a));
}

// Of dx = dy sign(x) |x|^(p - 1) y^(1 - p); of an extremum, whose slopes are constant, only by dy. Where y is 0 so
// is dx, and all of these are: u and dy are 0 there, and 1 stands in place of y and of an x of 0, which have no
// negative powers, so that further derivatives are 0, too.
void BackwardGrad(GradContext<NormAttributes, NoScalars>& ctx) {
  const NormAttributes& a = ctx.attributes();
  const Shape& shape = ctx.operand_type(0).shape;
  const Value x = ctx.saved("x");
  const Term norm = {&ctx.emitter(), ctx.saved("y")};
  const Term is_not_zero = IsNotZero(norm);
  const Term u = KeptWhere(Spread(is_not_zero, shape, a.Reduce()), {&ctx.emitter(), ctx.grad()});
  const Term dy = KeptWhere(is_not_zero, {&ctx.emitter(), ctx.saved("dy")});
  const auto power = [&](const Term& base, double exponent) {
    return Term{&ctx.emitter(), ctx.Emit(kPowScalar, {base.value}, {}, {.exponent = exponent})};
  };
  const Value one = ctx.Emit(kShift, {(dy * 0.0).value}, {}, {.shift = 1});
  const Term slope = {&ctx.emitter(), ctx.Emit(kVectorNormGrad, {x, norm.value, one}, a)};
  const Term to_dy = SumOver(u * slope, a.Reduce());
  if (ctx.Wants(2)) ctx.SetGrad(2, to_dy.value);
  if (std::isinf(a.p) || a.p == 1) return;
  const Term y = OneForZero(norm);
  if (ctx.Wants(1)) ctx.SetGrad(1, (to_dy * dy / y * (1 - a.p)).value);
  if (!ctx.Wants(0)) return;
  Term bent = u * Spread(dy * power(y, 1 - a.p), shape, a.Reduce()) * (a.p - 1);
  if (a.p != 2) {
    const Term magnitude = {&ctx.emitter(), ctx.Emit(kAbs, {x})};
    bent = bent * KeptWhere(IsNotZero(magnitude), power(OneForZero(magnitude), a.p - 2));
  }
  ctx.SetGrad(0, bent.value);
}

// Constant almost everywhere.
void BackwardTies(GradContext<NormAttributes, NoScalars>&) {}

TensorTypes InferGrad(Operands operands, const NormAttributes& a) {
  const TensorType result = ResultType("vector_norm_grad", operands[0], a);
  RequireType("vector_norm_grad", "y", operands[1], result);
  RequireType("vector_norm_grad", "dy", operands[2], result);
  return {operands[0]};
}

std::string RuleGrad(Operands operands, const NormAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string x = AllFactors(ndim);
  const std::string y = KeptFactors(ndim, a.Reduce());
  return absl::StrCat(x, ", ", y, ", ", y, " -> ", x);
}

TensorTypes InferPowerSum(Operands operands, const NormAttributes& a) {
  return {{DType::kF64, ResultType("power_sum", operands[0], a).shape}};
}

std::string RulePowerSum(Operands operands, const NormAttributes& a) {
  const int ndim = operands[0].ndim();
  const char* kind = a.p == kInf ? "max: " : a.p == -kInf ? "min: " : "";
  return absl::StrCat(AllFactors(ndim), " -> ", kind, KeptFactors(ndim, a.Reduce()));
}

TensorTypes InferTies(Operands operands, const NormAttributes& a) {
  const TensorType result = ResultType("norm_ties", operands[0], a);
  RequireType("norm_ties", "y", operands[1], result);
  return {{StatisticDType(result.dtype), result.shape}};
}

std::string RuleTies(Operands operands, const NormAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string y = KeptFactors(ndim, a.Reduce());
  return absl::StrCat(AllFactors(ndim), ", ", y, " -> ", y);
}

TensorTypes InferFinish(Operands operands, const NormFinishAttributes& a) {
  WEFT_REQUIRE(operands[0].dtype == DType::kF64 && IsFloating(a.dtype),
               "norm_finish: expected f64 and a floating dtype, got ", operands[0].ToString(), " and ",
               DTypeName(a.dtype));
  return {{a.dtype, operands[0].shape}};
}

std::string RuleFinish(Operands operands, const NormFinishAttributes&) {
  return ElementwiseRule(/*num_operands=*/1, /*num_outputs=*/1, operands[0].ndim());
}

SampleOperand F32(const Shape& shape, double low = -2, double high = 2) {
  return {.type = {DType::kF32, shape}, .low = low, .high = high};
}

std::vector<Sample<NormAttributes>> Samples() {
  return {{.operands = {F32({3, 5})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({4, 3})}, .attributes = {.dims = DimMaskOf({0}), .keepdims = true, .p = 1}},
          {.operands = {F32({2, 3, 4})}, .attributes = {.dims = DimMaskOf({0, 2}), .p = 3}},
          {.operands = {F32({3, 4})}, .attributes = {.dims = DimMaskOf({1}), .p = kInf}},
          {.operands = {F32({3, 4})}, .attributes = {.dims = DimMaskOf({0}), .p = -kInf}},
          {.operands = {F32({4, 2}, 0.5, 2)}, .attributes = {.dims = DimMaskOf({0}), .p = 0.5}},
          {.operands = {F32({3, 4})}, .attributes = {.dims = DimMaskOf({1}), .p = 0}},
          {.operands = {F32({6})}, .attributes = {.dims = AllDims(1), .p = 1.5}}};
}

std::vector<Sample<NormAttributes>> GradSamples() {
  return {{.operands = {F32({3, 5}), F32({3}, 0.5, 2), F32({3})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({2, 3, 4}), F32({1, 3, 1}, 0.5, 2), F32({1, 3, 1})},
           .attributes = {.dims = DimMaskOf({0, 2}), .keepdims = true, .p = 3}},
          {.operands = {F32({3, 5}), F32({3}, 0.5, 2), F32({3})},
           .attributes = {.dims = DimMaskOf({1}), .p = 1}}};
}

std::vector<Sample<NormAttributes>> TiesSamples() {
  return {{.operands = {F32({3, 1}), F32({3})}, .attributes = {.dims = DimMaskOf({1}), .p = kInf}},
          {.operands = {F32({2, 3}), F32({1, 3})},
           .attributes = {.dims = DimMaskOf({0}), .keepdims = true, .p = -kInf}}};
}

std::vector<Sample<NormFinishAttributes>> FinishSamples() {
  const SampleOperand sum = {.type = {DType::kF64, {3, 4}}, .low = 0.5, .high = 2};
  return {{.operands = {sum}, .attributes = {.p = 2, .dtype = DType::kF32}},
          {.operands = {sum}, .attributes = {.p = 3, .dtype = DType::kF64}},
          {.operands = {sum}, .attributes = {.p = kInf, .dtype = DType::kBF16}}};
}

}  // namespace

constinit const Op<NormAttributes> kVectorNorm = {{
    .name = "vector_norm",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .saves = "x y",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<NormAttributes> kVectorNormGrad = {{
    .name = "vector_norm_grad",
    .operands = "x y dy",
    .outputs = "dx",
    .infer = InferGrad,
    .rule = RuleGrad,
    .linear = "{dy}",
    .saves = "x y dy",
    .backward = BackwardGrad,
    .samples = GradSamples,
}};
constinit const Op<NormAttributes> kPowerSum = {
    {.name = "power_sum", .operands = "x", .infer = InferPowerSum, .rule = RulePowerSum, .samples = Samples}};
constinit const Op<NormAttributes> kNormTies = {{.name = "norm_ties",
                                                 .operands = "x y",
                                                 .infer = InferTies,
                                                 .rule = RuleTies,
                                                 .backward = BackwardTies,
                                                 .samples = TiesSamples}};
constinit const Op<NormFinishAttributes> kNormFinish = {{
    .name = "norm_finish",
    .operands = "sum",
    .infer = InferFinish,
    .rule = RuleFinish,
    .samples = FinishSamples,
}};

}  // namespace weft
