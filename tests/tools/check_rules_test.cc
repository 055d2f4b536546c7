// No rule is trusted: whatever every op says about sharding, against its kernel run on pieces, the public
// call and its gradients (tools/rules/rule_check.h). Everything on one axis, a drawn sample of compositions;
// `bazel run //tools:check_rules -- --exhaustive` walks all of them. A new op is covered without a line here.

#include <string>

#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "tools/rules/rule_check.h"

namespace weft {
namespace {

class CheckRulesTest : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(CheckRulesTest, NothingIsWrong) {
  const RuleReport report = CheckOp(*GetParam());
  for (const WrongStrategy& wrong : report.wrong) ADD_FAILURE() << wrong.ToString();
  EXPECT_GT(report.cases, 100);
}

INSTANTIATE_TEST_SUITE_P(AllOps, CheckRulesTest, ::testing::ValuesIn(RegisteredOps()),
                         [](const auto& info) { return std::string(info.param->name()); });

}  // namespace
}  // namespace weft
