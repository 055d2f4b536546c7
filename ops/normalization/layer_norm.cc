#include "ops/normalization/layer_norm.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/settle.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/normalization/norm_rstd.h"
#include "ops/normalization/norm_second_order.h"
#include "ops/reduce/row_reductions.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const LayerNormAttributes& attributes) {
  const TensorType& x = operands[0];
  RequireRows("layer_norm", "x", x);
  RequireVector("layer_norm", "w", operands[1], x);
  RequireVector("layer_norm", "b", operands[2], x);
  WEFT_REQUIRE(attributes.eps >= 0, "layer_norm: eps must not be negative, got ", attributes.eps);
  return {x, StatisticType(x), StatisticType(x)};
}

std::string Rule(absl::Span<const TensorType> operands, const LayerNormAttributes&) {
  const int ndim = operands[0].ndim();
  const std::string rows = RowFactors(ndim, "d!");
  const std::string statistic = StatisticFactors(ndim);
  return absl::StrCat(rows, ", d!, d! -> ", rows, ", ", statistic, ", ", statistic);
}

void Backward(GradContext<LayerNormAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  const Value x = ctx.saved("x");
  const Value mean = ctx.saved("mean");
  const Value rstd = ctx.saved("rstd");
  Value dx;
  if (ctx.Wants(0)) {
    dx = StatisticsGrad(ctx.emitter(), {.x = x, .w = {}, .mean = mean, .rstd = rstd, .dy = {}}, ctx.grad(1),
                        ctx.grad(2));
  }
  if (!dy.defined()) {
    if (dx.defined()) ctx.SetGrad(0, dx);
    return;
  }
  Value dw;
  Value db;
  if (ctx.Wants(0)) {
    // One pass over x and dy for all three: where only dx is wanted, the others cost a few flops and, since
    // nobody reads them, no communication.
    const Values gradients = ctx.EmitAll(kLayerNormGrad, {x, ctx.saved("w"), mean, rstd, dy});
    ctx.SetGrad(0, dx.defined() ? ctx.Emit(kAdd, {gradients[0], dx}) : gradients[0]);
    dw = gradients[1];
    db = gradients[2];
  } else if (ctx.Wants(1) || ctx.Wants(2)) {
    const Values gradients = ctx.EmitAll(kLayerNormWeightGrad, {x, mean, rstd, dy});
    dw = gradients[0];
    db = gradients[1];
  }
  if (ctx.Wants(1)) ctx.SetGrad(1, dw);
  if (ctx.Wants(2)) ctx.SetGrad(2, db);
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const LayerNormAttributes& attributes,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value mean = emitter.Emit(kSettle, {emitter.Emit(kRowMean, {x})});
  const Value rstd =
      emitter.Emit(kNormRstd, {emitter.Emit(kRowVariance, {x, mean})}, {.eps = attributes.eps});
  return {emitter.Emit(kLayerNormApply, {x, operands[1], operands[2], mean, rstd}), mean, rstd};
}

TensorTypes InferApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  const TensorType& x = operands[0];
  RequireRows("layer_norm_apply", "x", x);
  RequireVector("layer_norm_apply", "w", operands[1], x);
  RequireVector("layer_norm_apply", "b", operands[2], x);
  RequireStatistic("layer_norm_apply", "mean", operands[3], x);
  RequireStatistic("layer_norm_apply", "rstd", operands[4], x);
  return {x};
}

std::string RuleApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", d, d, ", statistic, ", ", statistic, " -> ", rows);
}

std::vector<Sample<LayerNormAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {5}}}, {{DType::kF32, {5}}}},
           .attributes = {.eps = 0.1}},
          {.operands = {{{DType::kF32, {3, 1}}}, {{DType::kF32, {1}}}, {{DType::kF32, {1}}}},
           .attributes = {.eps = 0.1}},
          {.operands = {{{DType::kF32, {7}}}, {{DType::kF32, {7}}}, {{DType::kF32, {7}}}},
           .attributes = {.eps = 0.1}}};
}

std::vector<Sample<>> SamplesApply() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}},
                        {{DType::kF32, {5}}},
                        {{DType::kF32, {5}}},
                        {{DType::kF32, {2, 3}}},
                        {{DType::kF32, {2, 3}}, 0.5, 2}}}};
}

}  // namespace

constinit const Op<LayerNormAttributes> kLayerNorm = {{
    .name = "layer_norm",
    .operands = "x w b",
    .outputs = "y mean rstd",
    .infer = Infer,
    .rule = Rule,
    .saves = "x w mean rstd",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<> kLayerNormApply = {{
    .name = "layer_norm_apply",
    .operands = "x w b mean rstd",
    .infer = InferApply,
    .rule = RuleApply,
    .linear = "{w b}",
    .samples = SamplesApply,
}};

}  // namespace weft
