// check_rules_test without draws: all compositions, tuples, special values and pairs of odd extents of every
// op. Too long for every change: .ci/nightly runs it.

#include <string>

#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "tools/rules/rule_check.h"

namespace weft {
namespace {

class CheckRulesExhaustiveTest : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(CheckRulesExhaustiveTest, NothingIsWrong) {
  const RuleReport report = CheckOp(*GetParam(), {.exhaustive = true});
  for (const WrongStrategy& wrong : report.wrong) ADD_FAILURE() << wrong.ToString();
  EXPECT_EQ(report.compositions_tried, report.compositions);
  EXPECT_GE(report.cases, CheckOp(*GetParam()).cases);
}

INSTANTIATE_TEST_SUITE_P(AllOps, CheckRulesExhaustiveTest, ::testing::ValuesIn(RegisteredOps()),
                         [](const auto& info) { return std::string(info.param->name()); });

}  // namespace
}  // namespace weft
