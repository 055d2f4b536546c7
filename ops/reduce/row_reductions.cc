#include "ops/reduce/row_reductions.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"

namespace weft {
namespace {

// x -> y
TensorTypes InferRows(absl::string_view op, absl::Span<const TensorType> operands) {
  RequireRows(op, "x", operands[0]);
  return {StatisticType(operands[0])};
}

template <const Op<>* op>
TensorTypes InferOne(absl::Span<const TensorType> operands, const NoAttributes&) {
  return InferRows(op->name(), operands);
}

TensorTypes InferDot(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireRows(kRowDot.name(), "a", operands[0]);
  RequireType(kRowDot.name(), "b", operands[1], operands[0]);
  return {StatisticType(operands[0])};
}

TensorTypes InferExpSum(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireRows(kRowExpSum.name(), "x", operands[0]);
  RequireStatistic(kRowExpSum.name(), "max", operands[1], operands[0]);
  return {operands[1]};
}

TensorTypes InferVariance(absl::Span<const TensorType> operands, const NoAttributes&) {
  RequireRows(kRowVariance.name(), "x", operands[0]);
  RequireStatistic(kRowVariance.name(), "mean", operands[1], operands[0]);
  return {operands[1]};
}

std::string RuleMax(absl::Span<const TensorType> operands, const NoAttributes&) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(RowFactors(ndim, "n"), " -> max: ", StatisticFactors(ndim));
}

std::string RuleOne(absl::Span<const TensorType> operands, const NoAttributes&) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(RowFactors(ndim, "n"), " -> ", StatisticFactors(ndim));
}

std::string RuleDot(absl::Span<const TensorType> operands, const NoAttributes&) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(RowFactors(ndim, "n"), ", ", RowFactors(ndim, "n"), " -> ", StatisticFactors(ndim));
}

// x and one number per row.
std::string RuleAround(absl::Span<const TensorType> operands, const NoAttributes&) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(RowFactors(ndim, "n"), ", ", StatisticFactors(ndim), " -> ", StatisticFactors(ndim));
}

std::vector<Sample<>> SamplesOne() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}}},
          {.operands = {{{DType::kF32, {3, 1}}}}},
          {.operands = {{{DType::kF32, {7}}}}}};
}

std::vector<Sample<>> SamplesDot() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {2, 3, 5}}}}},
          {.operands = {{{DType::kF32, {7}}}, {{DType::kF32, {7}}}}}};
}

std::vector<Sample<>> SamplesAround() {
  return {{.operands = {{{DType::kF32, {2, 3, 5}}}, {{DType::kF32, {2, 3}}}}},
          {.operands = {{{DType::kF32, {7}}}, {{DType::kF32, {}}}}}};
}

}  // namespace

constinit const Op<> kRowMax = {{
    .name = "row_max",
    .operands = "x",
    .infer = InferOne<&kRowMax>,
    .rule = RuleMax,
    .samples = SamplesOne,
}};
constinit const Op<> kRowSum = {{
    .name = "row_sum",
    .operands = "x",
    .infer = InferOne<&kRowSum>,
    .rule = RuleOne,
    .linear = "{x}",
    .samples = SamplesOne,
}};
constinit const Op<> kRowDot = {{
    .name = "row_dot",
    .operands = "a b",
    .infer = InferDot,
    .rule = RuleDot,
    .linear = "{a}{b}",
    .samples = SamplesDot,
}};
constinit const Op<> kRowExpSum = {{
    .name = "row_exp_sum",
    .operands = "x max",
    .infer = InferExpSum,
    .rule = RuleAround,
    .samples = SamplesAround,
}};
constinit const Op<> kRowMean = {{
    .name = "row_mean",
    .operands = "x",
    .infer = InferOne<&kRowMean>,
    .rule = RuleOne,
    .linear = "{x}",
    .samples = SamplesOne,
}};
constinit const Op<> kRowMeanSquare = {{
    .name = "row_mean_square",
    .operands = "x",
    .infer = InferOne<&kRowMeanSquare>,
    .rule = RuleOne,
    .samples = SamplesOne,
}};
constinit const Op<> kRowVariance = {{
    .name = "row_variance",
    .operands = "x mean",
    .infer = InferVariance,
    .rule = RuleAround,
    .samples = SamplesAround,
}};

}  // namespace weft
