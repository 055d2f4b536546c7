// The rule check must pass the toy ops and catch planted wrong rules: right kernels under wrong promises.

#include "tests/ops/check_rule.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/kernel.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using Types = absl::Span<const TensorType>;
using Call = KernelCall<NoAttributes, NoScalars>;

// The parts of a toy op, for declarations that differ from it in one line.
template <const Op<>& toy>
TensorTypes InferOf(Types types, const NoAttributes& none) {
  return toy.Infer(types, &none);
}
template <const Op<>& toy>
std::string RuleOf(Types types, const NoAttributes& none) {
  return toy.Rule(types, &none);
}
template <const Op<>& toy>
void KernelOf(const Call& call) {
  toy.Invoke(FindKernel(toy, DeviceType::kCpu), call);
}
template <const Op<>& toy>
std::vector<Sample<>> SamplesOf() {
  std::vector<Sample<>> samples;
  for (const OpSample& sample : toy.Samples()) samples.push_back({.operands = sample.operands});
  return samples;
}

// A lookup that takes every piece of the table for its beginning.
void UnmaskedEmbedding(const Call& call) {
  std::vector<ShardBox> boxes(call.input_boxes.begin(), call.input_boxes.end());
  boxes[1].offset[0] = 0;
  KernelCallBase shifted = call;
  shifted.input_boxes = boxes;
  kToyEmbedding.Invoke(FindKernel(kToyEmbedding, DeviceType::kCpu), shifted);
}

Values DoubledLowering(Emitter& emitter, absl::Span<const Value> x, const NoAttributes&, const NoScalars&) {
  return {emitter.Emit(kToyAdd, {x[0], x[0]})};
}

constinit const Op<> kBiasReplicated = {{.name = "bias_replicated",
                                         .operands = "x w b",
                                         .infer = InferOf<kToyLinear>,
                                         .rule = RuleOf<kToyLinear>,
                                         .linear = "",
                                         .samples = SamplesOf<kToyLinear>}};
constinit const Op<> kBiasLeftOut = {
    {.name = "bias_left_out",
     .operands = "x w b",
     .infer = InferOf<kToyLinear>,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "m k!, k! n, n -> m n"; },
     .linear = "{x}{w}",
     .samples = SamplesOf<kToyLinear>}};
constinit const Op<> kAddAlone = {{.name = "add_alone",
                                   .operands = "a b",
                                   .infer = InferOf<kToyAdd>,
                                   .rule = RuleOf<kToyAdd>,
                                   .linear = "{a}{b}",
                                   .samples = SamplesOf<kToyAdd>}};
constinit const Op<> kDivideJoint = {{.name = "divide_joint",
                                      .operands = "x s",
                                      .infer = InferOf<kToyRowDivide>,
                                      .rule = RuleOf<kToyRowDivide>,
                                      .linear = "{x s}",
                                      .samples = SamplesOf<kToyRowDivide>}};
constinit const Op<> kReluLinear = {{.name = "relu_linear",
                                     .operands = "x",
                                     .infer = InferOf<kToyRelu>,
                                     .rule = RuleOf<kToyRelu>,
                                     .linear = "{x}",
                                     .samples = SamplesOf<kToyRelu>}};
constinit const Op<> kMomentsLinear = {{.name = "moments_linear",
                                        .operands = "x",
                                        .outputs = "sum squares",
                                        .infer = InferOf<kToyMoments>,
                                        .rule = RuleOf<kToyMoments>,
                                        .linear = "{x}",
                                        .samples = SamplesOf<kToyMoments>}};
constinit const Op<> kNormSplit = {
    {.name = "norm_split",
     .operands = "x",
     .infer = InferOf<kToyNormalize>,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d -> b d"; },
     .samples = SamplesOf<kToyNormalize>}};
constinit const Op<> kCumulateSplit = {
    {.name = "cumulate_split",
     .operands = "x",
     .infer = InferOf<kToyRowCumulate>,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d -> b d"; },
     .samples = SamplesOf<kToyRowCumulate>}};
constinit const Op<> kMaxAsSum = {
    {.name = "max_as_sum",
     .operands = "x",
     .infer = InferOf<kToyRowMax>,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d -> b"; },
     .samples = SamplesOf<kToyRowMax>}};
constinit const Op<> kSumAsMax = {
    {.name = "sum_as_max",
     .operands = "x",
     .infer = InferOf<kToyRowSum>,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d -> max: b"; },
     .samples = SamplesOf<kToyRowSum>}};
constinit const Op<> kUnmasked = {{.name = "unmasked",
                                   .operands = "ids w",
                                   .infer = InferOf<kToyEmbedding>,
                                   .rule = RuleOf<kToyEmbedding>,
                                   .linear = "{w}",
                                   .samples = SamplesOf<kToyEmbedding>}};
constinit const Op<> kWrongDims = {
    {.name = "wrong_dims",
     .operands = "x",
     .infer = InferOf<kToyTranspose>,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "a b -> a b"; },
     .is_view = true,
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{{DType::kF32, {4, 4}}}}}};
     }}};
constinit const Op<> kWrongLowering = {{.name = "wrong_lowering",
                                        .operands = "x",
                                        .infer = InferOf<kToyNormalize>,
                                        .rule = RuleOf<kToyNormalize>,
                                        .lowering = DoubledLowering,
                                        .samples = SamplesOf<kToyNormalize>}};

const RegisterKernel kRegistered[] = {
    {kBiasReplicated, DeviceType::kCpu, KernelOf<kToyLinear>},
    {kBiasLeftOut, DeviceType::kCpu, KernelOf<kToyLinear>},
    {kAddAlone, DeviceType::kCpu, KernelOf<kToyAdd>},
    {kDivideJoint, DeviceType::kCpu, KernelOf<kToyRowDivide>},
    {kReluLinear, DeviceType::kCpu, KernelOf<kToyRelu>},
    {kMomentsLinear, DeviceType::kCpu, KernelOf<kToyMoments>},
    {kNormSplit, DeviceType::kCpu, KernelOf<kToyNormalize>},
    {kCumulateSplit, DeviceType::kCpu, KernelOf<kToyRowCumulate>},
    {kMaxAsSum, DeviceType::kCpu, KernelOf<kToyRowMax>},
    {kSumAsMax, DeviceType::kCpu, KernelOf<kToyRowSum>},
    {kUnmasked, DeviceType::kCpu, UnmaskedEmbedding},
    {kWrongDims, DeviceType::kCpu, KernelOf<kToyTranspose>},
    {kWrongLowering, DeviceType::kCpu, KernelOf<kToyNormalize>},
};

std::string Verdict(const OpDef& op) {
  const ::testing::AssertionResult result = CheckRule(op, op.Samples()[0]);
  return result ? "right" : result.message();
}

TEST(CheckRuleTest, PassesTheToyOps) {
  int passed = 0;
  for (const OpDef* op : RegisteredOps()) {
    if (!absl::StartsWith(op->name(), "toy_")) continue;
    EXPECT_EQ(Verdict(*op), "right") << op->name();
    ++passed;
  }
  EXPECT_EQ(passed, 16);
}

TEST(CheckRuleTest, CatchesFactorsThatMustNotSplitSo) {
  EXPECT_THAT(Verdict(kBiasReplicated), HasSubstr("rule m k, k n, n -> m n, splitting k over 2"));
  EXPECT_THAT(Verdict(kNormSplit), HasSubstr("splitting d over 2"));
  EXPECT_THAT(Verdict(kCumulateSplit), HasSubstr("splitting d over 2"));
  EXPECT_THAT(Verdict(kMaxAsSum), HasSubstr("splitting d over 2"));
  EXPECT_THAT(Verdict(kSumAsMax), HasSubstr("splitting d over 2"));
  EXPECT_THAT(Verdict(kUnmasked), HasSubstr("splitting v over 2"));
}

TEST(CheckRuleTest, CatchesGroupsThatAreNotLinear) {
  EXPECT_THAT(Verdict(kBiasLeftOut), HasSubstr("linear {x}{w}, 2 terms of operands 0"));
  EXPECT_THAT(Verdict(kAddAlone), HasSubstr("linear {a}{b}, 2 terms of operands 0"));
  EXPECT_THAT(Verdict(kDivideJoint), HasSubstr("linear {x s}, 2 terms of operands 0, 1"));
  EXPECT_THAT(Verdict(kReluLinear), HasSubstr("linear {x}, 2 terms of operands 0"));
  EXPECT_THAT(Verdict(kMomentsLinear), HasSubstr("(output 1)"));
}

TEST(CheckRuleTest, CatchesWrongLowerings) {
  EXPECT_THAT(Verdict(kWrongLowering), HasSubstr("(output 0 of the lowering)"));
}

TEST(CheckRuleTest, CatchesPiecesOfAnotherShape) {
  try {
    Verdict(kWrongDims);
    FAIL() << "a rule that swaps dims passed";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("wrong_dims: output 0 should be f64[2, 4], is f64[4, 2]"));
  }
}

}  // namespace
}  // namespace weft
