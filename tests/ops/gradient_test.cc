// Backward against central differences, in f64, for every op that has a kernel.

#include <map>
#include <string>

#include "absl/algorithm/container.h"
#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "tests/ops/check_gradients.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

constexpr char kGradient[] = "a gradient itself, which has none";
constexpr char kDecomposition[] = "a step of a decomposition: decompositions are not recorded";

// Ops with floating operands and outputs and no backward, each with the reason.
const std::map<std::string, std::string>& NotDifferentiable() {
  static const auto* const kOps = new std::map<std::string, std::string>{
      {"attention_grad", kGradient},
      {"bernoulli_of", "random"},
      {"block_magnitudes", "of an optimizer's state"},
      {"centered_squares", kDecomposition},
      {"clip_factor", "runs after backward"},
      {"cofactor", kGradient},
      {"avg_pool_grad", kGradient},
      {"channel_mean", kDecomposition},
      {"channel_norm_grad", kGradient},
      {"channel_norm_grad_apply", kDecomposition},
      {"channel_norm_grad_sums", kDecomposition},
      {"channel_variance", kDecomposition},
      {"conv_data_grad", kGradient},
      {"conv_weight_grad", kGradient},
      {"cross_entropy_finish", kDecomposition},
      {"cross_entropy_statistics", kDecomposition},
      {"cumprod_from", kDecomposition},
      {"cumprod_grad", kGradient},
      {"cumsum_from", kDecomposition},
      {"dequantize_blocks", "of an optimizer's state"},
      {"exp_sum", kDecomposition},
      {"layer_norm_apply", kDecomposition},
      {"layer_norm_grad_apply", kDecomposition},
      {"layer_norm_grad_means", kDecomposition},
      {"log_softmax_apply", kDecomposition},
      {"log_softmax_grad_apply", kDecomposition},
      {"log_sum_exp_finish", kDecomposition},
      {"mean_statistic", kDecomposition},
      {"norm_finish", kDecomposition},
      {"masked_attention_grad", kGradient},
      {"masked_attention_mask_grad", kGradient},
      {"max_pool_grad", kGradient},
      {"norm_rstd", kDecomposition},
      {"packed_attention_grad", kGradient},
      {"piece_cofactor", kDecomposition},
      {"piece_offsets", kDecomposition},
      {"piece_product", kDecomposition},
      {"piece_total", kDecomposition},
      {"power_sum", kDecomposition},
      {"product_offsets", kDecomposition},
      {"rms_norm_apply", kDecomposition},
      {"rms_norm_grad_apply", kDecomposition},
      {"rms_norm_grad_mean", kDecomposition},
      {"row_dot", kDecomposition},
      {"row_exp_sum", kDecomposition},
      {"row_max", kDecomposition},
      {"row_mean", kDecomposition},
      {"row_mean_square", kDecomposition},
      {"row_sum", kDecomposition},
      {"row_variance", kDecomposition},
      {"sign", "constant almost everywhere"},
      {"selection_grad", kGradient},
      {"softmax_apply", kDecomposition},
      {"softmax_grad_apply", kDecomposition},
      {"sum_squares", "runs after backward"},
      {"top_k_candidates", kDecomposition},
      {"top_k_merge", kDecomposition},
      {"totals_cofactor", kDecomposition},
  };
  return *kOps;
}

// Outputs that only the op's own backward reads: it refuses a gradient of them.
const std::map<std::string, std::vector<int>>& Statistics() {
  static const auto* const kOps = new std::map<std::string, std::vector<int>>{
      {"attention", {1}},
      {"channel_norm", {1, 2}},
      {"masked_attention", {1}},
      {"packed_attention", {1}},
  };
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
