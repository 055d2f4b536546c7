#include "ops/normalization/channel_norm.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/settle.h"
#include "ops/normalization/channel_norm_grad.h"
#include "ops/normalization/norm_rstd.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;
using Attributes = ChannelNormAttributes;

TensorTypes Infer(Operands operands, const Attributes& a) {
  const TensorType& x = operands[0];
  RequireChannels("channel_norm", x, a);
  RequireType("channel_norm", "w", operands[1], ChannelVectorType(x));
  RequireType("channel_norm", "b", operands[2], ChannelVectorType(x));
  const TensorType statistic = ChannelStatisticType(x, a);
  return {x, statistic, statistic};
}

std::string Rule(Operands operands, const Attributes& a) {
  const ChannelFactors f = ChannelFactorsOf(operands[0].ndim(), a, /*whole=*/true);
  return absl::StrCat(f.x, ", ", f.channel, ", ", f.channel, " -> ", f.x, ", ", f.statistic, ", ",
                      f.statistic);
}

void Backward(GradContext<Attributes, NoScalars>& ctx) {
  RequireNoGradient("channel_norm", "mean", ctx.grad(1).defined());
  RequireNoGradient("channel_norm", "variance", ctx.grad(2).defined());
  const Value dy = ctx.grad();
  if (!dy.defined() || !(ctx.Wants(0) || ctx.Wants(1) || ctx.Wants(2))) return;
  const Value x = ctx.saved("x");
  const Value w = ctx.saved("w");
  const Value mean = ctx.saved("mean");
  const Value variance = ctx.saved("variance");
  if (ctx.Wants(0)) {
    const Values gradients = ctx.EmitAll(kChannelNormGrad, {x, w, mean, variance, dy}, ctx.attributes());
    for (int i = 0; i < 3; ++i) {
      if (ctx.Wants(i)) ctx.SetGrad(i, gradients[i]);
    }
    return;
  }
  const Values sums = ctx.EmitAll(kChannelNormGradSums, {x, w, mean, variance, dy}, ctx.attributes());
  if (ctx.Wants(1)) ctx.SetGrad(1, sums[0]);
  if (ctx.Wants(2)) ctx.SetGrad(2, sums[1]);
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const Attributes& a, const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value mean = emitter.Emit(kSettle, {emitter.Emit(kChannelMean, {x}, a)});
  const Value variance = emitter.Emit(kSettle, {emitter.Emit(kChannelVariance, {x, mean}, a)});
  return {emitter.Emit(kChannelNormApply, {x, operands[1], operands[2], mean, variance}, a), mean, variance};
}

// y = (x - mean) * rstd * w + b in all its operands. With count elements to a statistic and h = (x - mean) *
// rstd:
//   dmean = -count rstd mean(dy w),  dvariance = -count / 2 rstd^2 mean(dy w h).
void BackwardApply(GradContext<Attributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  if (!dy.defined()) return;
  const Attributes& a = ctx.attributes();
  const Value x = ctx.saved("x");
  const Value w = ctx.saved("w");
  const Value mean = ctx.saved("mean");
  const Value variance = ctx.saved("variance");
  if (ctx.Wants(0)) {
    // The statistics do not move with x: nothing is subtracted.
    const Value zero = ctx.Emit(kSub, {mean, mean});
    ctx.SetGrad(0, ctx.Emit(kChannelNormGradApply, {x, w, mean, variance, dy, zero, zero}, a));
  }
  if (!ctx.Wants(1) && !ctx.Wants(2) && !ctx.Wants(3) && !ctx.Wants(4)) return;
  const Values sums = ctx.EmitAll(kChannelNormGradSums, {x, w, mean, variance, dy}, a);
  if (ctx.Wants(1)) ctx.SetGrad(1, sums[0]);
  if (ctx.Wants(2)) ctx.SetGrad(2, sums[1]);
  if (!ctx.Wants(3) && !ctx.Wants(4)) return;
  const double elements = static_cast<double>(ctx.operand_type(0).shape.num_elements());
  const double statistics = static_cast<double>(ctx.operand_type(3).shape.num_elements());
  const double count = statistics == 0 ? 0 : elements / statistics;
  const Value rstd = ctx.Emit(kNormRstd, {variance}, {.eps = a.eps});
  if (ctx.Wants(3)) {
    const Value slope = ctx.Emit(kScale, {rstd}, {}, {.factor = -count});
    ctx.SetGrad(3, ctx.Emit(kMul, {slope, sums[2]}));
  }
  if (ctx.Wants(4)) {
    const Value slope = ctx.Emit(kScale, {ctx.Emit(kSquare, {rstd})}, {}, {.factor = -count / 2});
    ctx.SetGrad(4, ctx.Emit(kMul, {slope, sums[3]}));
  }
}

TensorTypes InferMean(Operands operands, const Attributes& a) {
  RequireChannels("channel_mean", operands[0], a);
  return {ChannelStatisticType(operands[0], a)};
}

TensorTypes InferVariance(Operands operands, const Attributes& a) {
  RequireChannels("channel_variance", operands[0], a);
  const TensorType statistic = ChannelStatisticType(operands[0], a);
  RequireType("channel_variance", "mean", operands[1], statistic);
  return {statistic};
}

TensorTypes InferApply(Operands operands, const Attributes& a) {
  const TensorType& x = operands[0];
  RequireChannels("channel_norm_apply", x, a);
  RequireType("channel_norm_apply", "w", operands[1], ChannelVectorType(x));
  RequireType("channel_norm_apply", "b", operands[2], ChannelVectorType(x));
  RequireType("channel_norm_apply", "mean", operands[3], ChannelStatisticType(x, a));
  RequireType("channel_norm_apply", "variance", operands[4], ChannelStatisticType(x, a));
  return {x};
}

std::string RuleMean(Operands operands, const Attributes& a) {
  const ChannelFactors f = ChannelFactorsOf(operands[0].ndim(), a, /*whole=*/false);
  return absl::StrCat(f.x, " -> ", f.statistic);
}

std::string RuleVariance(Operands operands, const Attributes& a) {
  const ChannelFactors f = ChannelFactorsOf(operands[0].ndim(), a, /*whole=*/false);
  return absl::StrCat(f.x, ", ", f.statistic, " -> ", f.statistic);
}

std::string RuleApply(Operands operands, const Attributes& a) {
  const ChannelFactors f = ChannelFactorsOf(operands[0].ndim(), a, /*whole=*/false);
  return absl::StrCat(f.x, ", ", f.channel, ", ", f.channel, ", ", f.statistic, ", ", f.statistic, " -> ",
                      f.x);
}

// Shapes for the tests over all ops.
struct SampleShape {
  Shape x;
  Attributes attributes;
};

std::vector<SampleShape> AllSampleShapes() {
  return {{{3, 4, 2}, {.groups = 0, .eps = 0.1}},
          {{2, 3}, {.groups = 0, .eps = 0.1}},
          {{2, 4, 3, 2}, {.groups = 2, .eps = 0.1}},
          {{3, 3, 2}, {.groups = 3, .eps = 0.1}},
          {{2, 6}, {.groups = 1, .eps = 0.1}}};
}

// x, then as many vectors by channel, statistics and, after those, variances.
std::vector<Sample<Attributes>> SamplesWith(int vectors, int means, int variances) {
  std::vector<Sample<Attributes>> samples;
  for (const SampleShape& s : AllSampleShapes()) {
    const TensorType x = {DType::kF32, s.x};
    const TensorType statistic = ChannelStatisticType(x, s.attributes);
    Sample<Attributes> sample = {.operands = {{x}}, .attributes = s.attributes};
    for (int i = 0; i < vectors; ++i) sample.operands.push_back({ChannelVectorType(x)});
    for (int i = 0; i < means; ++i) sample.operands.push_back({statistic});
    for (int i = 0; i < variances; ++i) sample.operands.push_back({statistic, 0.5, 2});
    samples.push_back(sample);
  }
  return samples;
}

std::vector<Sample<Attributes>> Samples() { return SamplesWith(/*vectors=*/2, /*means=*/0, /*variances=*/0); }
std::vector<Sample<Attributes>> SamplesMean() { return SamplesWith(0, 0, 0); }
std::vector<Sample<Attributes>> SamplesVariance() { return SamplesWith(0, /*means=*/1, 0); }
std::vector<Sample<Attributes>> SamplesApply() { return SamplesWith(2, 1, 1); }

}  // namespace

constinit const Op<ChannelNormAttributes> kChannelNorm = {{
    .name = "channel_norm",
    .operands = "x w b",
    .outputs = "y mean variance",
    .infer = Infer,
    .rule = Rule,
    .saves = "x w mean variance",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<ChannelNormAttributes> kChannelMean = {{
    .name = "channel_mean",
    .operands = "x",
    .outputs = "mean",
    .infer = InferMean,
    .rule = RuleMean,
    .linear = "{x}",
    .samples = SamplesMean,
}};
constinit const Op<ChannelNormAttributes> kChannelVariance = {{
    .name = "channel_variance",
    .operands = "x mean",
    .outputs = "variance",
    .infer = InferVariance,
    .rule = RuleVariance,
    .samples = SamplesVariance,
}};
constinit const Op<ChannelNormAttributes> kChannelNormApply = {{
    .name = "channel_norm_apply",
    .operands = "x w b mean variance",
    .infer = InferApply,
    .rule = RuleApply,
    .linear = "{w b}",
    .saves = "x w mean variance",
    .backward = BackwardApply,
    .samples = SamplesApply,
}};

}  // namespace weft
