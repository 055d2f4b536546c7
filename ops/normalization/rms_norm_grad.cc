#include "ops/normalization/rms_norm_grad.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"
#include "ops/normalization/norm_second_order.h"

namespace weft {
namespace {

void RequireOperands(absl::string_view op, absl::Span<const TensorType> operands) {
  const TensorType& x = operands[0];
  RequireRows(op, "x", x);
  RequireVector(op, "w", operands[1], x);
  RequireStatistic(op, "rstd", operands[2], x);
  RequireType(op, "dy", operands[3], x);
}

TensorTypes Infer(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireOperands("rms_norm_grad", operands);
  return {operands[0], operands[1]};
}

std::string Rule(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d!");
  return absl::StrCat(rows, ", d!, ", StatisticFactors(operands[0].ndim()), ", ", rows, " -> ", rows, ", d!");
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const NoAttributes&, const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value w = operands[1], rstd = operands[2], dy = operands[3];
  const Value gn_mean = emitter.Emit(kRmsNormGradMean, {x, w, rstd, dy});
  return {emitter.Emit(kRmsNormGradApply, {x, w, rstd, dy, gn_mean}),
          emitter.Emit(kRmsNormWeightGrad, {x, rstd, dy})};
}

void Backward(GradContext<NoAttributes, NoScalars>& ctx) {
  const NormGradOperands to = DifferentiateNormGrad(ctx.emitter(),
                                                    {.x = ctx.saved("x"),
                                                     .w = ctx.saved("w"),
                                                     .mean = {},
                                                     .rstd = ctx.saved("rstd"),
                                                     .dy = ctx.saved("dy")},
                                                    {.dx = ctx.grad(0), .dw = ctx.grad(1), .db = {}});
  SetWanted(ctx, {to.x, to.w, to.rstd, to.dy});
}

void BackwardWeight(GradContext<NoAttributes, NoScalars>& ctx) {
  const NormGradOperands to = DifferentiateNormGrad(
      ctx.emitter(),
      {.x = ctx.saved("x"), .w = {}, .mean = {}, .rstd = ctx.saved("rstd"), .dy = ctx.saved("dy")},
      {.dx = {}, .dw = ctx.grad(0), .db = {}});
  SetWanted(ctx, {to.x, to.rstd, to.dy});
}

TensorTypes InferWeight(absl::Span<const TensorType> operands, const NoAttributes&) {
  const TensorType& x = operands[0];
  RequireRows("rms_norm_weight_grad", "x", x);
  RequireStatistic("rms_norm_weight_grad", "rstd", operands[1], x);
  RequireType("rms_norm_weight_grad", "dy", operands[2], x);
  return {{x.dtype, Shape({x.shape[x.ndim() - 1]})}};
}

std::string RuleWeight(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d");
  return absl::StrCat(rows, ", ", StatisticFactors(operands[0].ndim()), ", ", rows, " -> d");
}

TensorTypes InferMean(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireOperands("rms_norm_grad_mean", operands);
  return {operands[2]};
}

std::string RuleMean(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", d, ", statistic, ", ", rows, " -> ", statistic);
}

TensorTypes InferApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireOperands("rms_norm_grad_apply", operands);
  RequireStatistic("rms_norm_grad_apply", "gn_mean", operands[4], operands[0]);
  return {operands[0]};
}

std::string RuleApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", d, ", statistic, ", ", rows, ", ", statistic, " -> ", rows);
}

constexpr SampleOperand kRows = {{DType::kF32, {2, 3, 5}}};
constexpr SampleOperand kVector = {{DType::kF32, {5}}};
constexpr SampleOperand kStatistic = {{DType::kF32, {2, 3}}};
constexpr SampleOperand kRstd = {{DType::kF32, {2, 3}}, 0.5, 2};

std::vector<Sample<>> Samples() {
  return {
      {.operands = {kRows, kVector, kRstd, kRows}},
      {.operands = {
           {{DType::kF32, {7}}}, {{DType::kF32, {7}}}, {{DType::kF32, {}}, 0.5, 2}, {{DType::kF32, {7}}}}}};
}
std::vector<Sample<>> SamplesWeight() { return {{.operands = {kRows, kRstd, kRows}}}; }
std::vector<Sample<>> SamplesApply() { return {{.operands = {kRows, kVector, kRstd, kRows, kStatistic}}}; }

}  // namespace

constinit const Op<> kRmsNormGrad = {{
    .name = "rms_norm_grad",
    .operands = "x w rstd dy",
    .outputs = "dx dw",
    .infer = Infer,
    .rule = Rule,
    .linear = "{dy}",
    .saves = "x w rstd dy",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<> kRmsNormWeightGrad = {{
    .name = "rms_norm_weight_grad",
    .operands = "x rstd dy",
    .outputs = "dw",
    .infer = InferWeight,
    .rule = RuleWeight,
    .linear = "{x}{rstd}{dy}",
    .saves = "x rstd dy",
    .backward = BackwardWeight,
    .samples = SamplesWeight,
}};
constinit const Op<> kRmsNormGradMean = {{
    .name = "rms_norm_grad_mean",
    .operands = "x w rstd dy",
    .outputs = "gn_mean",
    .infer = InferMean,
    .rule = RuleMean,
    .linear = "{x}{w}{rstd}{dy}",
    .samples = Samples,
}};
constinit const Op<> kRmsNormGradApply = {{
    .name = "rms_norm_grad_apply",
    .operands = "x w rstd dy gn_mean",
    .outputs = "dx",
    .infer = InferApply,
    .rule = RuleApply,
    .linear = "{dy gn_mean}",
    .samples = SamplesApply,
}};

}  // namespace weft
