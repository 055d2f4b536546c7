#include "ops/normalization/channel_norm_grad.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;
using Attributes = ChannelNormAttributes;

// x w mean variance dy, and further statistics for which `more` has names.
void RequireOperands(absl::string_view op, Operands operands, const Attributes& a,
                     std::initializer_list<absl::string_view> more = {}) {
  const TensorType& x = operands[0];
  RequireChannels(op, x, a);
  const TensorType statistic = ChannelStatisticType(x, a);
  RequireType(op, "w", operands[1], ChannelVectorType(x));
  RequireType(op, "mean", operands[2], statistic);
  RequireType(op, "variance", operands[3], statistic);
  RequireType(op, "dy", operands[4], x);
  int next = 5;
  for (absl::string_view name : more) RequireType(op, name, operands[next++], statistic);
}

// "x w mean variance dy".
std::string OperandFactors(const ChannelFactors& f) {
  return absl::StrCat(f.x, ", ", f.channel, ", ", f.statistic, ", ", f.statistic, ", ", f.x);
}

TensorTypes Infer(Operands operands, const Attributes& a) {
  RequireOperands("channel_norm_grad", operands, a);
  return {operands[0], operands[1], operands[1]};
}

std::string Rule(Operands operands, const Attributes& a) {
  const ChannelFactors f = ChannelFactorsOf(operands[0].ndim(), a, /*whole=*/true);
  return absl::StrCat(OperandFactors(f), " -> ", f.x, ", ", f.channel, ", ", f.channel);
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const Attributes& a, const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value w = operands[1], mean = operands[2], variance = operands[3], dy = operands[4];
  const Values sums = emitter.EmitAll(kChannelNormGradSums, {x, w, mean, variance, dy}, a);
  const Value dx = emitter.Emit(kChannelNormGradApply, {x, w, mean, variance, dy, sums[2], sums[3]}, a);
  return {dx, sums[0], sums[1]};
}

TensorTypes InferSums(Operands operands, const Attributes& a) {
  RequireOperands("channel_norm_grad_sums", operands, a);
  return {operands[1], operands[1], operands[2], operands[2]};
}

std::string RuleSums(Operands operands, const Attributes& a) {
  const ChannelFactors f = ChannelFactorsOf(operands[0].ndim(), a, /*whole=*/false);
  return absl::StrCat(OperandFactors(f), " -> ", f.channel, ", ", f.channel, ", ", f.statistic, ", ",
                      f.statistic);
}

TensorTypes InferApply(Operands operands, const Attributes& a) {
  RequireOperands("channel_norm_grad_apply", operands, a, {"g_mean", "gh_mean"});
  return {operands[0]};
}

std::string RuleApply(Operands operands, const Attributes& a) {
  const ChannelFactors f = ChannelFactorsOf(operands[0].ndim(), a, /*whole=*/false);
  return absl::StrCat(OperandFactors(f), ", ", f.statistic, ", ", f.statistic, " -> ", f.x);
}

std::vector<Sample<Attributes>> SamplesWith(int more_statistics) {
  std::vector<Sample<Attributes>> samples;
  for (const auto& [shape, attributes] :
       std::initializer_list<std::pair<Shape, Attributes>>{{{3, 4, 2}, {.groups = 0, .eps = 0.1}},
                                                           {{2, 3}, {.groups = 0, .eps = 0.1}},
                                                           {{2, 4, 3, 2}, {.groups = 2, .eps = 0.1}},
                                                           {{3, 3, 2}, {.groups = 3, .eps = 0.1}}}) {
    const TensorType x = {DType::kF32, shape};
    const TensorType statistic = ChannelStatisticType(x, attributes);
    Sample<Attributes> sample = {
        .operands = {{x}, {ChannelVectorType(x)}, {statistic}, {statistic, 0.5, 2}, {x}},
        .attributes = attributes};
    for (int i = 0; i < more_statistics; ++i) sample.operands.push_back({statistic});
    samples.push_back(sample);
  }
  return samples;
}

std::vector<Sample<Attributes>> Samples() { return SamplesWith(0); }
std::vector<Sample<Attributes>> SamplesApply() { return SamplesWith(2); }

}  // namespace

constinit const Op<ChannelNormAttributes> kChannelNormGrad = {{
    .name = "channel_norm_grad",
    .operands = "x w mean variance dy",
    .outputs = "dx dw db",
    .infer = Infer,
    .rule = Rule,
    .linear = "{dy}",
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<ChannelNormAttributes> kChannelNormGradSums = {{
    .name = "channel_norm_grad_sums",
    .operands = "x w mean variance dy",
    .outputs = "dw db g_mean gh_mean",
    .infer = InferSums,
    .rule = RuleSums,
    .linear = "{dy}",
    .samples = Samples,
}};
constinit const Op<ChannelNormAttributes> kChannelNormGradApply = {
    {.name = "channel_norm_grad_apply",
     .operands = "x w mean variance dy g_mean gh_mean",
     .outputs = "dx",
     .infer = InferApply,
     .rule = RuleApply,
     .linear = "{dy g_mean gh_mean}",
     .samples = SamplesApply}};

}  // namespace weft
