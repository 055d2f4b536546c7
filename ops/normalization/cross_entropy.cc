#include "ops/normalization/cross_entropy.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/elementwise/select.h"
#include "ops/elementwise/settle.h"
#include "ops/elementwise/term.h"
#include "ops/reduce/row_reductions.h"

namespace weft {
namespace {

void RequireTargets(absl::string_view op, const TensorType& targets, const TensorType& statistic) {
  WEFT_REQUIRE(
      (targets.dtype == DType::kI32 || targets.dtype == DType::kI64) && targets.shape == statistic.shape, op,
      ": targets must be i32 or i64 of shape ", statistic.shape.ToString(), ", one a row of logits, got ",
      targets.ToString());
}

void RequireOperands(absl::string_view op, absl::Span<const TensorType> operands,
                     const CrossEntropyAttributes& attributes) {
  RequireRows(op, "logits", operands[0]);
  RequireTargets(op, operands[1], StatisticType(operands[0]));
  WEFT_REQUIRE(attributes.label_smoothing >= 0 && attributes.label_smoothing <= 1, op,
               ": label_smoothing must lie in [0, 1], got ", attributes.label_smoothing);
}

TensorType ScalarLike(const TensorType& statistic) { return {statistic.dtype, Shape()}; }

TensorTypes Infer(absl::Span<const TensorType> operands, const CrossEntropyAttributes& attributes) {
  RequireOperands("cross_entropy", operands, attributes);
  const TensorType lse = StatisticType(operands[0]);
  return {ScalarLike(lse), ScalarLike(lse), lse};
}

std::string Rule(absl::Span<const TensorType> operands, const CrossEntropyAttributes&) {
  const int ndim = operands[0].ndim();
  const std::string statistic = StatisticFactors(ndim);
  return absl::StrCat(RowFactors(ndim, "v!"), ", ", statistic, " -> (), (), ", statistic);
}

// One number a position as a column [..., 1], to broadcast against logits.
Term Column(const Term& statistic) {
  Shape shape = statistic.type().shape;
  shape.push_back(1);
  return Spread(statistic, shape, {.dims = DimMaskOf({shape.ndim() - 1})});
}

// Whether positions count, as bool: undefined if all do, for an ignore_index that no target can be.
Term Counts(Emitter& emitter, Value targets, int64_t ignore_index) {
  const bool is_narrow = emitter.TypeOf(targets).dtype == DType::kI32;
  if (is_narrow && ignore_index != static_cast<int32_t>(ignore_index)) return {};
  // ignore_index - target, and not the other way round: the least integer has no negative.
  const ExactTerms index = ExactTermsOf(ignore_index);
  Value away = emitter.Emit(kShift, {targets}, {}, {.negate = true, .shift = index.high});
  if (index.low != 0) away = emitter.Emit(kShift, {away}, {}, {.shift = index.low});
  return IsNotZero({&emitter, away});
}

// exp(logits - lse) in the dtype of lse, 0 at positions that do not count. There lse is 0: what the exponent is
// kept below is no matter elsewhere.
Term Probabilities(Emitter& emitter, Value logits, Value targets, Value lse,
                   const CrossEntropyAttributes& attributes) {
  const Term statistic = {&emitter, lse};
  const DType dtype = statistic.type().dtype;
  const Term log = Cast({&emitter, logits}, dtype) - Column(statistic);
  const Value kept = emitter.Emit(kClamp, {log.value}, {}, {.max = 0});
  const Term probabilities = Exp({&emitter, kept});
  const Term counts = Counts(emitter, targets, attributes.ignore_index);
  return counts.defined() ? KeptWhere(Column(counts), probabilities) : probabilities;
}

void Backward(GradContext<CrossEntropyAttributes, NoScalars>& ctx) {
  if (!ctx.Wants(0)) return;
  const Value logits = ctx.saved("logits"), targets = ctx.saved("targets"), lse = ctx.saved("lse");
  Value gradient;
  if (ctx.grad(0).defined()) {
    gradient = ctx.Emit(kCrossEntropyGrad, {logits, targets, lse, ctx.grad(0)}, ctx.attributes());
  }
  if (ctx.grad(2).defined()) {
    const Term p = Probabilities(ctx.emitter(), logits, targets, lse, ctx.attributes());
    const Term through = Cast(p * Column({&ctx.emitter(), ctx.grad(2)}), ctx.operand_type(0).dtype);
    gradient = Plus({&ctx.emitter(), gradient}, through).value;
  }
  if (gradient.defined()) ctx.SetGrad(0, gradient);
}

// Of dlogits = (p - onehots) dloss, p the probabilities.
void BackwardGrad(GradContext<CrossEntropyAttributes, NoScalars>& ctx) {
  const Value logits = ctx.saved("logits"), targets = ctx.saved("targets"), lse = ctx.saved("lse");
  const Term dloss = {&ctx.emitter(), ctx.saved("dloss")};
  const Term u = Cast({&ctx.emitter(), ctx.grad()}, dloss.type().dtype);
  if (ctx.Wants(0) || ctx.Wants(2)) {
    const Term product = u * Probabilities(ctx.emitter(), logits, targets, lse, ctx.attributes()) * dloss;
    const DimMask last = DimMaskOf({ctx.operand_type(0).ndim() - 1});
    if (ctx.Wants(0)) ctx.SetGrad(0, Cast(product, ctx.operand_type(0).dtype).value);
    if (ctx.Wants(2)) ctx.SetGrad(2, (-SumOver(product, {.dims = last})).value);
  }
  if (!ctx.Wants(3)) return;
  const Value one = ctx.Emit(kShift, {(dloss * 0.0).value}, {}, {.shift = 1});
  const Term slope = {&ctx.emitter(),
                      ctx.Emit(kCrossEntropyGrad, {logits, targets, lse, one}, ctx.attributes())};
  ctx.SetGrad(3, SumTo(u * Cast(slope, dloss.type().dtype), Shape()).value);
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const CrossEntropyAttributes& attributes,
                 const NoScalars&) {
  const Value logits = emitter.Emit(kSettle, {operands[0]});
  const Value targets = operands[1];
  const Value max = emitter.Emit(kSettle, {emitter.Emit(kRowMax, {logits})});
  const Values statistics = emitter.EmitAll(kCrossEntropyStatistics, {logits, targets, max}, attributes);
  return emitter.EmitAll(kCrossEntropyFinish, {targets, max, statistics[0], statistics[1]}, attributes);
}

TensorTypes InferGrad(absl::Span<const TensorType> operands, const CrossEntropyAttributes& attributes) {
  RequireOperands("cross_entropy_grad", operands, attributes);
  RequireStatistic("cross_entropy_grad", "lse", operands[2], operands[0]);
  RequireType("cross_entropy_grad", "dloss", operands[3], ScalarLike(operands[2]));
  return {operands[0]};
}

std::string RuleGrad(absl::Span<const TensorType> operands, const CrossEntropyAttributes&) {
  const std::string rows = RowFactors(operands[0].ndim(), "v");
  const std::string statistic = StatisticFactors(operands[0].ndim());
  return absl::StrCat(rows, ", ", statistic, ", ", statistic, ", () -> ", rows);
}

TensorTypes InferStatistics(absl::Span<const TensorType> operands, const CrossEntropyAttributes& attributes) {
  RequireOperands("cross_entropy_statistics", operands, attributes);
  RequireStatistic("cross_entropy_statistics", "max", operands[2], operands[0]);
  return {operands[2], operands[2]};
}

std::string RuleStatistics(absl::Span<const TensorType> operands, const CrossEntropyAttributes&) {
  const int ndim = operands[0].ndim();
  const std::string statistic = StatisticFactors(ndim);
  return absl::StrCat(RowFactors(ndim, "v"), ", ", statistic, ", ", statistic, " -> ", statistic, ", ",
                      statistic);
}

TensorTypes InferFinish(absl::Span<const TensorType> operands, const CrossEntropyAttributes&) {
  const TensorType& max = operands[1];
  WEFT_REQUIRE(max.dtype == DType::kF32 || max.dtype == DType::kF64,
               "cross_entropy_finish: max must be f32 or f64, got ", max.ToString());
  RequireTargets("cross_entropy_finish", operands[0], max);
  RequireType("cross_entropy_finish", "sumexp", operands[2], max);
  RequireType("cross_entropy_finish", "picked", operands[3], max);
  return {ScalarLike(max), ScalarLike(max), max};
}

std::string RuleFinish(absl::Span<const TensorType> operands, const CrossEntropyAttributes&) {
  const std::string each = StatisticFactors(operands[0].ndim() + 1);
  return absl::StrCat(each, ", ", each, ", ", each, ", ", each, " -> (), (), ", each);
}

// Targets are drawn from the classes; some of those are then ignored.
constexpr CrossEntropyAttributes kSmoothed = {.ignore_index = 1, .label_smoothing = 0.1};
constexpr SampleOperand kLogits = {{DType::kF32, {2, 3, 5}}};
constexpr SampleOperand kTargets = {{DType::kI64, {2, 3}}, 0, 5};
constexpr SampleOperand kStatistic = {{DType::kF32, {2, 3}}, 1, 2};

std::vector<Sample<CrossEntropyAttributes>> Samples() {
  return {{.operands = {kLogits, kTargets}},
          {.operands = {kLogits, kTargets}, .attributes = kSmoothed},
          {.operands = {{{DType::kF32, {3, 1}}}, {{DType::kI32, {3}}, 0, 1}}},
          {.operands = {{{DType::kF32, {7}}}, {{DType::kI32, {}}, 0, 7}}}};
}

std::vector<Sample<CrossEntropyAttributes>> SamplesGrad() {
  return {{.operands = {kLogits, kTargets, kStatistic, {{DType::kF32, {}}}}},
          {.operands = {kLogits, kTargets, kStatistic, {{DType::kF32, {}}}}, .attributes = kSmoothed}};
}

std::vector<Sample<CrossEntropyAttributes>> SamplesStatistics() {
  return {{.operands = {kLogits, kTargets, kStatistic}},
          {.operands = {kLogits, kTargets, kStatistic}, .attributes = kSmoothed}};
}

std::vector<Sample<CrossEntropyAttributes>> SamplesFinish() {
  return {{.operands = {kTargets, kStatistic, kStatistic, kStatistic}},
          {.operands = {kTargets, kStatistic, kStatistic, kStatistic}, .attributes = kSmoothed}};
}

}  // namespace

constinit const Op<CrossEntropyAttributes> kCrossEntropy = {{
    .name = "cross_entropy",
    .operands = "logits targets",
    .outputs = "loss count lse",
    .infer = Infer,
    .rule = Rule,
    .saves = "logits targets lse",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<CrossEntropyAttributes> kCrossEntropyGrad = {{
    .name = "cross_entropy_grad",
    .operands = "logits targets lse dloss",
    .outputs = "dlogits",
    .infer = InferGrad,
    .rule = RuleGrad,
    .linear = "{dloss}",
    .saves = "logits targets lse dloss",
    .backward = BackwardGrad,
    .samples = SamplesGrad,
}};
constinit const Op<CrossEntropyAttributes> kCrossEntropyStatistics = {{
    .name = "cross_entropy_statistics",
    .operands = "logits targets max",
    .outputs = "sumexp picked",
    .infer = InferStatistics,
    .rule = RuleStatistics,
    .samples = SamplesStatistics,
}};
constinit const Op<CrossEntropyAttributes> kCrossEntropyFinish = {{
    .name = "cross_entropy_finish",
    .operands = "targets max sumexp picked",
    .outputs = "loss count lse",
    .infer = InferFinish,
    .rule = RuleFinish,
    .samples = SamplesFinish,
}};

}  // namespace weft
