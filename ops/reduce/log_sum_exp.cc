#include "ops/reduce/log_sum_exp.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/reduced_dims.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/elementwise/settle.h"
#include "ops/elementwise/term.h"
#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

TensorType ResultType(const char* op, const TensorType& x, const ReduceAttributes& a) {
  WEFT_REQUIRE(IsFloating(x.dtype), op, ": expected a floating dtype, got ", x.ToString());
  return ReducedType(op, x, a);
}

TensorTypes Infer(Operands operands, const ReduceAttributes& a) {
  return {ResultType("log_sum_exp", operands[0], a)};
}

std::string Rule(Operands operands, const ReduceAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim, a.dims), " -> ", KeptFactors(ndim, a));
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const ReduceAttributes& a,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  // Of nothing there is no maximum; the log of its sum is right.
  if (ReducedCount(emitter.TypeOf(x).shape, a.dims) == 0) {
    return {emitter.Emit(kLog, {emitter.Emit(kSum, {x}, a)})};
  }
  const Value max = emitter.Emit(kSettle, {emitter.Emit(kReduceMax, {x}, a)});
  return {emitter.Emit(kLogSumExpFinish, {max, emitter.Emit(kExpSum, {x, max}, a)})};
}

void Backward(GradContext<ReduceAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.Emit(kLogSumExpGrad, {ctx.saved("x"), ctx.saved("y"), ctx.grad()}, ctx.attributes()));
}

// Of dx = dy exp(x - y), 0 where y is -inf: so the factor of dy is what the kernel makes of 1.
void BackwardGrad(GradContext<ReduceAttributes, NoScalars>& ctx) {
  const ReduceAttributes& a = ctx.attributes();
  const Term dy = {&ctx.emitter(), ctx.saved("dy")};
  const Value one = ctx.Emit(kShift, {(dy * 0.0).value}, {}, {.shift = 1});
  const Term share = {&ctx.emitter(), ctx.Emit(kLogSumExpGrad, {ctx.saved("x"), ctx.saved("y"), one}, a)};
  const Term product = Term{&ctx.emitter(), ctx.grad()} * share;
  if (ctx.Wants(2)) ctx.SetGrad(2, SumOver(product, a).value);
  if (!ctx.Wants(0) && !ctx.Wants(1)) return;
  const Term to_x = product * Spread(dy, ctx.operand_type(0).shape, a);
  if (ctx.Wants(0)) ctx.SetGrad(0, to_x.value);
  if (ctx.Wants(1)) ctx.SetGrad(1, (-SumOver(to_x, a)).value);
}

TensorTypes InferGrad(Operands operands, const ReduceAttributes& a) {
  const TensorType result = ResultType("log_sum_exp_grad", operands[0], a);
  RequireType("log_sum_exp_grad", "y", operands[1], result);
  RequireType("log_sum_exp_grad", "dy", operands[2], result);
  return {operands[0]};
}

std::string RuleGrad(Operands operands, const ReduceAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string x = AllFactors(ndim);
  const std::string y = KeptFactors(ndim, a);
  return absl::StrCat(x, ", ", y, ", ", y, " -> ", x);
}

TensorTypes InferExpSum(Operands operands, const ReduceAttributes& a) {
  TensorType result = ResultType("exp_sum", operands[0], a);
  RequireType("exp_sum", "max", operands[1], result);
  result.dtype = StatisticDType(result.dtype);
  return {result};
}

std::string RuleExpSum(Operands operands, const ReduceAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string y = KeptFactors(ndim, a);
  return absl::StrCat(AllFactors(ndim), ", ", y, " -> ", y);
}

TensorTypes InferFinish(Operands operands, const NoAttributes&) {
  const TensorType& max = operands[0];
  WEFT_REQUIRE(IsFloating(max.dtype), "log_sum_exp_finish: expected a floating dtype, got ", max.ToString());
  RequireType("log_sum_exp_finish", "sum", operands[1], {StatisticDType(max.dtype), max.shape});
  return {max};
}

std::string RuleFinish(Operands operands, const NoAttributes&) {
  return ElementwiseRule(/*num_operands=*/2, /*num_outputs=*/1, operands[0].ndim());
}

SampleOperand F32(const Shape& shape, double low = -3, double high = 3) {
  return {.type = {DType::kF32, shape}, .low = low, .high = high};
}

std::vector<Sample<ReduceAttributes>> Samples() {
  return {{.operands = {F32({3, 5})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({4, 3})}, .attributes = {.dims = DimMaskOf({0}), .keepdims = true}},
          {.operands = {F32({2, 3, 4})}, .attributes = {.dims = DimMaskOf({0, 2})}},
          {.operands = {F32({2, 0})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({7})}, .attributes = {.dims = AllDims(1)}}};
}

std::vector<Sample<ReduceAttributes>> GradSamples() {
  return {
      {.operands = {F32({3, 5}), F32({3}), F32({3})}, .attributes = {.dims = DimMaskOf({1})}},
      {.operands = {F32({2, 3, 4}), F32({1, 3, 1}), F32({1, 3, 1})},
       .attributes = {.dims = DimMaskOf({0, 2}), .keepdims = true}},
  };
}

std::vector<Sample<ReduceAttributes>> ExpSumSamples() {
  return {{.operands = {F32({3, 5}), F32({3})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({4, 3}), F32({1, 3})}, .attributes = {.dims = DimMaskOf({0}), .keepdims = true}}};
}

std::vector<Sample<>> FinishSamples() {
  return {{.operands = {F32({3, 5}), F32({3, 5}, 0.5, 2)}}, {.operands = {F32({}), F32({}, 0.5, 2)}}};
}

}  // namespace

constinit const Op<ReduceAttributes> kLogSumExp = {{
    .name = "log_sum_exp",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .saves = "x y",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<ReduceAttributes> kLogSumExpGrad = {{
    .name = "log_sum_exp_grad",
    .operands = "x y dy",
    .outputs = "dx",
    .infer = InferGrad,
    .rule = RuleGrad,
    .linear = "{dy}",
    .saves = "x y dy",
    .backward = BackwardGrad,
    .samples = GradSamples,
}};
constinit const Op<ReduceAttributes> kExpSum = {{
    .name = "exp_sum",
    .operands = "x max",
    .infer = InferExpSum,
    .rule = RuleExpSum,
    .samples = ExpSumSamples,
}};
constinit const Op<> kLogSumExpFinish = {{
    .name = "log_sum_exp_finish",
    .operands = "max sum",
    .infer = InferFinish,
    .rule = RuleFinish,
    .samples = FinishSamples,
}};

}  // namespace weft
