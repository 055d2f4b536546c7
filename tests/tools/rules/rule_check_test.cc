// The validator on ops whose rules are right: they pass, after real work, and a narrow rule's gaps are
// listed.

#include "tools/rules/rule_check.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using Types = absl::Span<const TensorType>;

// What a narrow rule leaves out is found: a product that may be split nowhere.
constinit const Op<> kNarrow = {
    {.name = "narrow",
     .operands = "x w",
     .infer = +[](Types types, const NoAttributes&) -> TensorTypes {
       return {{types[0].dtype, {types[0].shape[0], types[1].shape[1]}}};
     },
     .rule = +[](Types, const NoAttributes&) -> std::string { return "m! k, k n -> m! n"; },
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{{DType::kF32, {3, 5}}}, {{DType::kF32, {5, 2}}}}}};
     }}};
void Product(const KernelCall<NoAttributes, NoScalars>& call) {
  const ToyMatmulAttributes attributes;
  KernelCallBase product = call;
  product.erased_attributes = &attributes;
  kToyMatmul.Invoke(FindKernel(kToyMatmul, DeviceType::kCpu), product);
}
const RegisterKernel kRegisterNarrow(kNarrow, DeviceType::kCpu, Product);

TEST(RuleCheckTest, ListsWhatIsMissingWithTheReasonOfDeliberateOnes) {
  const RuleReport report = CheckOp(kNarrow);
  EXPECT_TRUE(report.wrong.empty()) << report.wrong[0].ToString();
  std::vector<std::string> plain;
  std::vector<std::string> deliberate;
  for (const MissingStrategy& missing : report.missing) {
    EXPECT_EQ(missing.op, "narrow");
    EXPECT_EQ(missing.rule, "m! k, k n -> m! n");
    (missing.reason.empty() ? plain : deliberate).push_back(missing.strategy);
  }
  EXPECT_THAT(
      plain, ::testing::UnorderedElementsAre("[a, -], [-, -] -> [a, -]", "[-, -] P{a}, [-, -] -> [-, -] P{a}",
                                             "[-, -], [-, -] P{a} -> [-, -] P{a}"));
  EXPECT_THAT(deliberate, ::testing::UnorderedElementsAre("[-, -] P{a:avg}, [-, -] -> [-, -] P{a:avg}",
                                                          "[-, -], [-, -] P{a:avg} -> [-, -] P{a:avg}"));
}

TEST(RuleCheckTest, PassesTheToyOpsAndSplitsThem) {
  int passed = 0;
  for (const OpDef* op : RegisteredOps()) {
    if (std::string(op->name()).rfind("toy_", 0) != 0) continue;
    const RuleReport report = CheckOp(*op);
    for (const WrongStrategy& wrong : report.wrong) ADD_FAILURE() << wrong.ToString();
    EXPECT_GT(report.cases, 100) << op->name();
    EXPECT_GT(report.compositions_tried, 3) << op->name();
    if (*op->in_place() == '\0') {
      EXPECT_EQ(report.refused, 0) << op->name();
    } else {
      EXPECT_GT(report.refused, 0) << op->name();
    }
    ++passed;
  }
  EXPECT_EQ(passed, 18);
}

TEST(RuleCheckTest, AnOpWithoutSamplesIsWrong) {
  static constinit const Op<> kNoSamples = {
      {.name = "no_samples",
       .operands = "x",
       .infer = +[](Types types, const NoAttributes&) -> TensorTypes { return {types[0]}; },
       .rule = +[](Types, const NoAttributes&) -> std::string { return "n -> n"; }}};
  const RuleReport report = CheckOp(kNoSamples);
  ASSERT_EQ(report.wrong.size(), 1u);
  EXPECT_THAT(report.wrong[0].ToString(), ::testing::HasSubstr("no_samples has no samples"));
}

TEST(RuleCheckTest, TheSameSeedDrawsTheSame) {
  const RuleReport a = CheckOp(kToyLinear, {.seed = 5});
  const RuleReport b = CheckOp(kToyLinear, {.seed = 5});
  EXPECT_EQ(a.cases, b.cases);
  EXPECT_EQ(a.missing.size(), b.missing.size());
  EXPECT_GT(CheckOp(kToyRelu, {.exhaustive = true}).cases, CheckOp(kToyRelu).cases);
}

}  // namespace
}  // namespace weft
