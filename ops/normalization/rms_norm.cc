#include "ops/normalization/rms_norm.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/settle.h"
#include "ops/normalization/norm_rstd.h"
#include "ops/normalization/norm_second_order.h"
#include "ops/normalization/rms_norm_grad.h"
#include "ops/reduce/row_reductions.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const RmsNormAttributes& attributes) {
  const TensorType& x = operands[0];
  RequireRows("rms_norm", "x", x);
  RequireVector("rms_norm", "w", operands[1], x);
  WEFT_REQUIRE(attributes.eps >= 0, "rms_norm: eps must not be negative, got ", attributes.eps);
  return {x, StatisticType(x)};
}

std::string Rule(absl::Span<const TensorType> operands, const RmsNormAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d!");
  return absl::StrCat(rows, ", d! -> ", rows, ", ", StatisticFactors(operands[0].ndim()));
}

void Backward(GradContext<RmsNormAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  const Value x = ctx.saved("x");
  const Value rstd = ctx.saved("rstd");
  Value dx;
  if (ctx.Wants(0)) {
    dx =
        StatisticsGrad(ctx.emitter(), {.x = x, .w = {}, .mean = {}, .rstd = rstd, .dy = {}}, {}, ctx.grad(1));
  }
  if (!dy.defined()) {
    if (dx.defined()) ctx.SetGrad(0, dx);
    return;
  }
  if (ctx.Wants(0)) {
    // As in layer_norm: dw comes nearly free with dx.
    const Values gradients = ctx.EmitAll(kRmsNormGrad, {x, ctx.saved("w"), rstd, dy});
    ctx.SetGrad(0, dx.defined() ? ctx.Emit(kAdd, {gradients[0], dx}) : gradients[0]);
    if (ctx.Wants(1)) ctx.SetGrad(1, gradients[1]);
  } else if (ctx.Wants(1)) {
    ctx.SetGrad(1, ctx.Emit(kRmsNormWeightGrad, {x, rstd, dy}));
  }
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const RmsNormAttributes& attributes,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value rstd = emitter.Emit(kNormRstd, {emitter.Emit(kRowMeanSquare, {x})}, {.eps = attributes.eps});
  return {emitter.Emit(kRmsNormApply, {x, operands[1], rstd}), rstd};
}

TensorTypes InferApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  const TensorType& x = operands[0];
  RequireRows("rms_norm_apply", "x", x);
  RequireVector("rms_norm_apply", "w", operands[1], x);
  RequireStatistic("rms_norm_apply", "rstd", operands[2], x);
  return {x};
}

std::string RuleApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "d");
  return absl::StrCat(rows, ", d, ", StatisticFactors(operands[0].ndim()), " -> ", rows);
}

std::vector<Sample<RmsNormAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {5}}}}, .attributes = {.eps = 0.1}},
          {.operands = {{{DType::kF32, {3, 1}}}, {{DType::kF32, {1}}}}, .attributes = {.eps = 0.1}},
          {.operands = {{{DType::kF32, {7}}}, {{DType::kF32, {7}}}}, .attributes = {.eps = 0.1}}};
}

std::vector<Sample<>> SamplesApply() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {5}}}, {{DType::kF32, {2, 3}}, 0.5, 2}}}};
}

}  // namespace

constinit const Op<RmsNormAttributes> kRmsNorm = {{
    .name = "rms_norm",
    .operands = "x w",
    .outputs = "y rstd",
    .infer = Infer,
    .rule = Rule,
    .saves = "x w rstd",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<> kRmsNormApply = {{
    .name = "rms_norm_apply",
    .operands = "x w rstd",
    .infer = InferApply,
    .rule = RuleApply,
    .linear = "{x}{w}{rstd}",
    .samples = SamplesApply,
}};

}  // namespace weft
