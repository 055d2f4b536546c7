#include "ops/normalization/layer_norm_grad.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"
#include "ops/normalization/norm_second_order.h"

namespace weft {
namespace {

// x w mean rstd dy, and further statistics for which `more` has names.
void RequireOperands(absl::string_view op, absl::Span<const TensorType> operands,
                     std::initializer_list<absl::string_view> more = {}) {
  const TensorType& x = operands[0];
  RequireRows(op, "x", x);
  RequireVector(op, "w", operands[1], x);
  RequireStatistic(op, "mean", operands[2], x);
  RequireStatistic(op, "rstd", operands[3], x);
  RequireType(op, "dy", operands[4], x);
  int next = 5;
  for (absl::string_view name : more) RequireStatistic(op, name, operands[next++], x);
}

TensorTypes Infer(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireOperands("layer_norm_grad", operands);
  return {operands[0], operands[1], operands[1]};
}

std::string Rule(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d!");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", d!, ", statistic, ", ", statistic, ", ", rows, " -> ", rows, ", d!, d!");
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const NoAttributes&, const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value w = operands[1], mean = operands[2], rstd = operands[3], dy = operands[4];
  const Values means = emitter.EmitAll(kLayerNormGradMeans, {x, w, mean, rstd, dy});
  const Value dx = emitter.Emit(kLayerNormGradApply, {x, w, mean, rstd, dy, means[0], means[1]});
  const Values weights = emitter.EmitAll(kLayerNormWeightGrad, {x, mean, rstd, dy});
  return {dx, weights[0], weights[1]};
}

void Backward(GradContext<NoAttributes, NoScalars>& ctx) {
  const NormGradOperands to =
      DifferentiateNormGrad(ctx.emitter(),
                            {.x = ctx.saved("x"),
                             .w = ctx.saved("w"),
                             .mean = ctx.saved("mean"),
                             .rstd = ctx.saved("rstd"),
                             .dy = ctx.saved("dy")},
                            {.dx = ctx.grad(0), .dw = ctx.grad(1), .db = ctx.grad(2)});
  SetWanted(ctx, {to.x, to.w, to.mean, to.rstd, to.dy});
}

void BackwardWeight(GradContext<NoAttributes, NoScalars>& ctx) {
  const NormGradOperands to = DifferentiateNormGrad(ctx.emitter(),
                                                    {.x = ctx.saved("x"),
                                                     .w = {},
                                                     .mean = ctx.saved("mean"),
                                                     .rstd = ctx.saved("rstd"),
                                                     .dy = ctx.saved("dy")},
                                                    {.dx = {}, .dw = ctx.grad(0), .db = ctx.grad(1)});
  SetWanted(ctx, {to.x, to.mean, to.rstd, to.dy});
}

TensorTypes InferWeight(absl::Span<const TensorType> operands, const NoAttributes&) {
  const TensorType& x = operands[0];
  RequireRows("layer_norm_weight_grad", "x", x);
  RequireStatistic("layer_norm_weight_grad", "mean", operands[1], x);
  RequireStatistic("layer_norm_weight_grad", "rstd", operands[2], x);
  RequireType("layer_norm_weight_grad", "dy", operands[3], x);
  const TensorType weight = {x.dtype, Shape({x.shape[x.ndim() - 1]})};
  return {weight, weight};
}

std::string RuleWeight(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", ", statistic, ", ", statistic, ", ", rows, " -> d, d");
}

TensorTypes InferMeans(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireOperands("layer_norm_grad_means", operands);
  return {operands[2], operands[2]};
}

std::string RuleMeans(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", d, ", statistic, ", ", statistic, ", ", rows, " -> ", statistic, ", ",
                      statistic);
}

TensorTypes InferApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireOperands("layer_norm_grad_apply", operands, {"g_mean", "gn_mean"});
  return {operands[0]};
}

std::string RuleApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", d, ", statistic, ", ", statistic, ", ", rows, ", ", statistic, ", ", statistic,
                      " -> ", rows);
}

constexpr SampleOperand kRows = {{DType::kF32, {2, 3, 5}}};
constexpr SampleOperand kVector = {{DType::kF32, {5}}};
constexpr SampleOperand kStatistic = {{DType::kF32, {2, 3}}};
constexpr SampleOperand kRstd = {{DType::kF32, {2, 3}}, 0.5, 2};

std::vector<Sample<>> Samples() {
  return {{.operands = {kRows, kVector, kStatistic, kRstd, kRows}},
          {.operands = {{{DType::kF32, {7}}},
                        {{DType::kF32, {7}}},
                        {{DType::kF32, {}}},
                        {{DType::kF32, {}}, 0.5, 2},
                        {{DType::kF32, {7}}}}}};
}
std::vector<Sample<>> SamplesWeight() { return {{.operands = {kRows, kStatistic, kRstd, kRows}}}; }
std::vector<Sample<>> SamplesApply() {
  return {{.operands = {kRows, kVector, kStatistic, kRstd, kRows, kStatistic, kStatistic}}};
}

}  // namespace

constinit const Op<> kLayerNormGrad = {{
    .name = "layer_norm_grad",
    .operands = "x w mean rstd dy",
    .outputs = "dx dw db",
    .infer = Infer,
    .rule = Rule,
    .linear = "{dy}",
    .saves = "x w mean rstd dy",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<> kLayerNormWeightGrad = {{
    .name = "layer_norm_weight_grad",
    .operands = "x mean rstd dy",
    .outputs = "dw db",
    .infer = InferWeight,
    .rule = RuleWeight,
    .linear = "{dy}",
    .saves = "x mean rstd dy",
    .backward = BackwardWeight,
    .samples = SamplesWeight,
}};
constinit const Op<> kLayerNormGradMeans = {{
    .name = "layer_norm_grad_means",
    .operands = "x w mean rstd dy",
    .outputs = "g_mean gn_mean",
    .infer = InferMeans,
    .rule = RuleMeans,
    .linear = "{w}{dy}",
    .samples = Samples,
}};
constinit const Op<> kLayerNormGradApply = {{
    .name = "layer_norm_grad_apply",
    .operands = "x w mean rstd dy g_mean gn_mean",
    .outputs = "dx",
    .infer = InferApply,
    .rule = RuleApply,
    .linear = "{dy g_mean gn_mean}",
    .samples = SamplesApply,
}};

}  // namespace weft
