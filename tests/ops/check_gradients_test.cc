// The gradient check must pass what is right and catch planted wrong backward rules.

#include "tests/ops/check_gradients.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "ops/sharding/sharding_rule.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using Context = GradContext<NoAttributes, NoScalars>;
using Call = KernelCall<NoAttributes, NoScalars>;

TensorTypes Same(absl::Span<const TensorType> types, const NoAttributes&) { return {types[0]}; }
TensorTypes Two(absl::Span<const TensorType> types, const NoAttributes&) { return {types[0], types[0]}; }
std::string Rule(absl::Span<const TensorType> types, const NoAttributes&) {
  return ElementwiseRule(static_cast<int>(types.size()), 1, 1);
}
std::vector<Sample<>> Pairs() { return {{.operands = {{{DType::kF32, {3}}}, {{DType::kF32, {3}}}}}}; }
std::vector<Sample<>> Singles() { return {{.operands = {{{DType::kF32, {3}}}}}}; }

// y = a + 2 b
void SumKernel(const Call& call) {
  for (int i = 0; i < 3; ++i) {
    call.outputs[0].data<double>()[i] =
        call.inputs[0].data<double>()[i] + 2 * call.inputs[1].data<double>()[i];
  }
}

// y = x, z = 3 x
void ScaleKernel(const Call& call) {
  for (int i = 0; i < 3; ++i) {
    call.outputs[0].data<double>()[i] = call.inputs[0].data<double>()[i];
    call.outputs[1].data<double>()[i] = 3 * call.inputs[0].data<double>()[i];
  }
}

Value Times3(Context& c, Value x) { return c.Emit(kToyAdd, {x, c.Emit(kToyAdd, {x, x})}); }

constinit const Op<> kSumRight = {{
    .name = "sum_right",
    .operands = "a b",
    .infer = Same,
    .rule = Rule,
    .backward =
        +[](Context& c) {
          if (c.Wants(0)) c.SetGrad(0, c.grad());
          if (c.Wants(1)) c.SetGrad(1, c.Emit(kToyAdd, {c.grad(), c.grad()}));
        },
    .samples = Pairs,
}};
constinit const Op<> kSumWrong = {{
    .name = "sum_wrong",
    .operands = "a b",
    .infer = Same,
    .rule = Rule,
    .backward =
        +[](Context& c) {
          for (int i : {0, 1})
            if (c.Wants(i)) c.SetGrad(i, c.grad());
        },
    .samples = Pairs,
}};
constinit const Op<> kSumForgets = {{
    .name = "sum_forgets",
    .operands = "a b",
    .infer = Same,
    .rule = Rule,
    .backward =
        +[](Context& c) {
          if (c.Wants(0)) c.SetGrad(0, c.grad());
        },
    .samples = Pairs,
}};
// Right when both are wanted, wrong when b is wanted alone.
constinit const Op<> kSumTangled = {
    {.name = "sum_tangled",
     .operands = "a b",
     .infer = Same,
     .rule = Rule,
     .backward =
         +[](Context& c) {
           if (c.Wants(0)) c.SetGrad(0, c.grad());
           if (c.Wants(1)) c.SetGrad(1, c.Wants(0) ? c.Emit(kToyAdd, {c.grad(), c.grad()}) : c.grad());
         },
     .samples = Pairs}};
constinit const Op<> kScaleRight = {
    {.name = "scale_right",
     .operands = "x",
     .outputs = "y z",
     .infer = Two,
     .rule = Rule,
     .backward =
         +[](Context& c) {
           if (!c.grad(1).defined()) return c.SetGrad(0, c.grad(0));
           const Value from_z = Times3(c, c.grad(1));
           c.SetGrad(0, c.grad(0).defined() ? c.Emit(kToyAdd, {c.grad(0), from_z}) : from_z);
         },
     .samples = Singles}};
constinit const Op<> kScaleIgnores = {{
    .name = "scale_ignores",
    .operands = "x",
    .outputs = "y z",
    .infer = Two,
    .rule = Rule,
    .backward = +[](Context& c) { c.SetGrad(0, c.grad(0)); },
    .samples = Singles,
}};

const RegisterKernel kRegistered[] = {
    {kSumRight, DeviceType::kCpu, SumKernel},     {kSumWrong, DeviceType::kCpu, SumKernel},
    {kSumForgets, DeviceType::kCpu, SumKernel},   {kSumTangled, DeviceType::kCpu, SumKernel},
    {kScaleRight, DeviceType::kCpu, ScaleKernel}, {kScaleIgnores, DeviceType::kCpu, ScaleKernel},
};

std::string Verdict(const OpDef& op, const GradientCheck& check = {}) {
  const ::testing::AssertionResult result = CheckGradients(op, op.Samples()[0], check);
  return result ? "right" : result.message();
}

TEST(CheckGradientsTest, PassesWhatIsRight) {
  EXPECT_EQ(Verdict(kSumRight), "right");
  EXPECT_EQ(Verdict(kScaleRight), "right");
  EXPECT_EQ(Verdict(kToyMatmul), "right");
  EXPECT_EQ(Verdict(kToyEmbedding), "right");
  EXPECT_EQ(Verdict(kToyAdd), "right");
}

TEST(CheckGradientsTest, CatchesWhatIsWrong) {
  EXPECT_THAT(Verdict(kSumWrong), HasSubstr("sum_wrong: gradient of operand 1 at row-major index 0"));
  EXPECT_THAT(Verdict(kSumForgets), HasSubstr("got 0 (none delivered), central differences give"));
  EXPECT_THAT(Verdict(kSumTangled), HasSubstr("(wanted alone)"));
  EXPECT_THAT(Verdict(kScaleIgnores), HasSubstr("scale_ignores: gradient of operand 0 at row-major index 0"));
}

TEST(CheckGradientsTest, ListedStatisticsCarryNoGradient) {
  EXPECT_EQ(Verdict(kScaleIgnores, {.statistics = {1}}), "right");
}

TEST(CheckGradientsTest, NeedsAFloatingOperandAndOutput) {
  EXPECT_TRUE(CanCheckGradients(kToyMatmul, kToyMatmul.Samples()[0]));
  EXPECT_FALSE(CanCheckGradients(kToyIota, kToyIota.Samples()[0]));
  OpSample sample = kToyAdd.Samples()[0];
  for (SampleOperand& operand : sample.operands) operand.type.dtype = DType::kBF16;
  EXPECT_FALSE(CanCheckGradients(kToyAdd, sample));
}

}  // namespace
}  // namespace weft
