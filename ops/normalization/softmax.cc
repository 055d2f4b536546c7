#include "ops/normalization/softmax.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"
#include "ops/elementwise/term.h"
#include "ops/reduce/row_reductions.h"

namespace weft {
namespace {

template <const Op<>* op>
TensorTypes Infer(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireRows(op->name(), "x", operands[0]);
  return {operands[0]};
}

std::string Rule(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "v!");
  return absl::StrCat(rows, " -> ", rows);
}

template <const Op<>* grad_op>
void Backward(GradContext<NoAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  if (dy.defined() && ctx.Wants(0)) ctx.SetGrad(0, ctx.Emit(*grad_op, {ctx.saved("y"), dy}));
}

template <const Op<>* apply_op>
Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const NoAttributes&, const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value max = emitter.Emit(kSettle, {emitter.Emit(kRowMax, {x})});
  return {emitter.Emit(*apply_op, {x, max, emitter.Emit(kRowExpSum, {x, max})})};
}

template <const Op<>* op>
TensorTypes InferGrad(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireRows(op->name(), "y", operands[0]);
  RequireType(op->name(), "dy", operands[1], operands[0]);
  return {operands[0]};
}

std::string RuleGrad(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "v!");
  return absl::StrCat(rows, ", ", rows, " -> ", rows);
}

Values DecomposeSoftmaxGrad(Emitter& emitter, absl::Span<const Value> operands, const NoAttributes&,
                            const NoScalars&) {
  const Value y = operands[0];
  const Value dy = operands[1];
  return {emitter.Emit(kSoftmaxGradApply, {y, dy, emitter.Emit(kRowDot, {y, dy})})};
}

Values DecomposeLogSoftmaxGrad(Emitter& emitter, absl::Span<const Value> operands, const NoAttributes&,
                               const NoScalars&) {
  const Value y = operands[0];
  const Value dy = operands[1];
  return {emitter.Emit(kLogSoftmaxGradApply, {y, dy, emitter.Emit(kRowSum, {dy})})};
}

// Of dx = y (dy - sum y dy).
void BackwardSoftmaxGrad(GradContext<NoAttributes, NoScalars>& ctx) {
  const Value y = ctx.saved("y");
  if (ctx.Wants(1)) ctx.SetGrad(1, ctx.Emit(kSoftmaxGrad, {y, ctx.grad()}));
  if (!ctx.Wants(0)) return;
  const Term g = {&ctx.emitter(), ctx.grad()}, dy = {&ctx.emitter(), ctx.saved("dy")};
  const ReduceAttributes rows = {.dims = DimMaskOf({dy.type().shape.ndim() - 1}), .keepdims = true};
  const Term product = Term{&ctx.emitter(), y} * g;
  const Term sum = SumOver(Term{&ctx.emitter(), y} * dy, rows);
  ctx.SetGrad(0, (g * (dy - sum) - dy * SumOver(product, rows)).value);
}

// Of dx = dy - exp(y) sum dy.
void BackwardLogSoftmaxGrad(GradContext<NoAttributes, NoScalars>& ctx) {
  const Term g = {&ctx.emitter(), ctx.grad()};
  const ReduceAttributes rows = {.dims = DimMaskOf({g.type().shape.ndim() - 1}), .keepdims = true};
  const Term product = g * Exp({&ctx.emitter(), ctx.saved("y")});
  if (ctx.Wants(1)) ctx.SetGrad(1, (g - SumOver(product, rows)).value);
  if (!ctx.Wants(0)) return;
  ctx.SetGrad(0, (-(product * SumOver({&ctx.emitter(), ctx.saved("dy")}, rows))).value);
}

template <const Op<>* op>
TensorTypes InferApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireRows(op->name(), "x", operands[0]);
  RequireStatistic(op->name(), "max", operands[1], operands[0]);
  RequireStatistic(op->name(), "sum", operands[2], operands[0]);
  return {operands[0]};
}

std::string RuleApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "v");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", ", statistic, ", ", statistic, " -> ", rows);
}

template <const Op<>* op>
TensorTypes InferGradApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireRows(op->name(), "y", operands[0]);
  RequireType(op->name(), "dy", operands[1], operands[0]);
  RequireStatistic(op->name(), "sum", operands[2], operands[0]);
  return {operands[0]};
}

std::string RuleGradApply(absl::Span<const TensorType> operands, const NoAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "v");
  return absl::StrCat(rows, ", ", rows, ", ", StatisticFactors(operands[0].ndim()), " -> ", rows);
}

std::vector<Sample<>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}}},
          {.operands = {{{DType::kF32, {3, 1}}}}},
          {.operands = {{{DType::kF32, {7}}}}}};
}

std::vector<Sample<>> SamplesGrad() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {2, 3, 5}}}}},
          {.operands = {{{DType::kF32, {7}}}, {{DType::kF32, {7}}}}}};
}

std::vector<Sample<>> SamplesApply() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}},
                        {{DType::kF32, {2, 3}}, 1, 2},
                        {{DType::kF32, {2, 3}}, 1, 5}}},
          {.operands = {{{DType::kF32, {7}}}, {{DType::kF32, {}}, 1, 2}, {{DType::kF32, {}}, 1, 5}}}};
}

std::vector<Sample<>> SamplesGradApply() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {2, 3}}}}},
          {.operands = {{{DType::kF32, {7}}}, {{DType::kF32, {7}}}, {{DType::kF32, {}}}}}};
}

}  // namespace

constinit const Op<> kSoftmax = {{
    .name = "softmax",
    .operands = "x",
    .infer = Infer<&kSoftmax>,
    .rule = Rule,
    .saves = "y",
    .backward = Backward<&kSoftmaxGrad>,
    .decomposition = Decompose<&kSoftmaxApply>,
    .samples = Samples,
}};
constinit const Op<> kLogSoftmax = {{
    .name = "log_softmax",
    .operands = "x",
    .infer = Infer<&kLogSoftmax>,
    .rule = Rule,
    .saves = "y",
    .backward = Backward<&kLogSoftmaxGrad>,
    .decomposition = Decompose<&kLogSoftmaxApply>,
    .samples = Samples,
}};
constinit const Op<> kSoftmaxGrad = {{
    .name = "softmax_grad",
    .operands = "y dy",
    .outputs = "dx",
    .infer = InferGrad<&kSoftmaxGrad>,
    .rule = RuleGrad,
    .linear = "{dy}",
    .saves = "y dy",
    .backward = BackwardSoftmaxGrad,
    .decomposition = DecomposeSoftmaxGrad,
    .samples = SamplesGrad,
}};
constinit const Op<> kLogSoftmaxGrad = {{
    .name = "log_softmax_grad",
    .operands = "y dy",
    .outputs = "dx",
    .infer = InferGrad<&kLogSoftmaxGrad>,
    .rule = RuleGrad,
    .linear = "{dy}",
    .saves = "y dy",
    .backward = BackwardLogSoftmaxGrad,
    .decomposition = DecomposeLogSoftmaxGrad,
    .samples = SamplesGrad,
}};
constinit const Op<> kSoftmaxApply = {{
    .name = "softmax_apply",
    .operands = "x max sum",
    .infer = InferApply<&kSoftmaxApply>,
    .rule = RuleApply,
    .samples = SamplesApply,
}};
constinit const Op<> kLogSoftmaxApply = {{
    .name = "log_softmax_apply",
    .operands = "x max sum",
    .infer = InferApply<&kLogSoftmaxApply>,
    .rule = RuleApply,
    .samples = SamplesApply,
}};
constinit const Op<> kSoftmaxGradApply = {{
    .name = "softmax_grad_apply",
    .operands = "y dy sum",
    .outputs = "dx",
    .infer = InferGradApply<&kSoftmaxGradApply>,
    .rule = RuleGradApply,
    .linear = "{y}{dy sum}",
    .samples = SamplesGradApply,
}};
constinit const Op<> kLogSoftmaxGradApply = {{
    .name = "log_softmax_grad_apply",
    .operands = "y dy sum",
    .outputs = "dx",
    .infer = InferGradApply<&kLogSoftmaxGradApply>,
    .rule = RuleGradApply,
    .linear = "{dy sum}",
    .samples = SamplesGradApply,
}};

}  // namespace weft
