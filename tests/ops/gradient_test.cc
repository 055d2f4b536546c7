// Backward against central differences, in f64, for every op that has a kernel.

#include <map>
#include <string>

#include "absl/algorithm/container.h"
#include "gtest/gtest.h"
#include "ops/kernel.h"
#include "tests/ops/check_gradients.h"
#include "tests/ops/sample_tensors.h"

namespace weft {
namespace {

// Ops with floating operands and outputs and no backward, each with the reason.
const std::map<std::string, std::string>& NotDifferentiable() {
  static const auto* const kOps = new std::map<std::string, std::string>{
      {"clip_factor", "runs after backward"},
      {"extremum_mask", "constant almost everywhere"},
      {"gelu_grad", "a gradient itself"},
      {"relu_grad", "a gradient itself"},
      {"silu_grad", "a gradient itself"},
      {"sum_squares", "runs after backward"},
  };
  return *kOps;
}

// Outputs that only the op's own backward reads: no gradient reaches them.
const std::map<std::string, std::vector<int>>& Statistics() {
  static const auto* const kOps = new std::map<std::string, std::vector<int>>{};
  return *kOps;
}

bool HasFloatingOperandAndOutput(const OpDef& op, const OpSample& sample) {
  const auto floating = [](const TensorType& type) { return IsFloating(type.dtype); };
  TensorTypes types;
  for (const SampleOperand& operand : sample.operands) types.push_back(operand.type);
  return absl::c_any_of(types, floating) &&
         absl::c_any_of(op.Infer(types, sample.attributes.get()), floating);
}

class GradientTest : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(GradientTest, MatchesCentralDifferences) {
  const OpDef& op = *GetParam();
  const std::vector<OpSample> samples = op.Samples();
  ASSERT_FALSE(samples.empty()) << op.name() << " has no samples";
  const bool smooth =
      absl::c_any_of(samples, [&](const OpSample& s) { return HasFloatingOperandAndOutput(op, s); });
  if (*op.in_place() != '\0' || !smooth) {
    EXPECT_FALSE(op.has_backward()) << op.name() << " cannot have a gradient";
    return;
  }
  const auto reason = NotDifferentiable().find(op.name());
  if (!op.has_backward()) {
    EXPECT_NE(reason, NotDifferentiable().end())
        << op.name() << " has no backward and no reason in NotDifferentiable()";
    return;
  }
  EXPECT_EQ(reason, NotDifferentiable().end()) << op.name() << " has a backward after all";
  GradientCheck check;
  if (const auto found = Statistics().find(op.name()); found != Statistics().end())
    check.statistics = found->second;
  int checked = 0;
  for (const OpSample& sample : samples) {
    if (!CanCheckGradients(op, sample)) continue;
    EXPECT_TRUE(CheckGradients(op, sample, check)) << CallText(op, sample);
    ++checked;
  }
  EXPECT_GT(checked, 0) << op.name() << " has no sample in a precision that differences can check";
}

INSTANTIATE_TEST_SUITE_P(AllOps, GradientTest, ::testing::ValuesIn(RegisteredOps()),
                         [](const auto& info) { return std::string(info.param->name()); });

TEST(GradientTestLists, NameOpsThatExist) {
  const std::vector<const OpDef*> ops = RegisteredOps();
  const auto exists = [&](const std::string& name) {
    return absl::c_any_of(ops, [&](const OpDef* op) { return name == op->name(); });
  };
  for (const auto& [name, reason] : NotDifferentiable()) EXPECT_TRUE(exists(name)) << name;
  for (const auto& [name, outputs] : Statistics()) EXPECT_TRUE(exists(name)) << name;
}

}  // namespace
}  // namespace weft
