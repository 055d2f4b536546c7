// No rule is trusted: what every op says about sharding, against its kernel run on pieces.

#include <string>

#include "gtest/gtest.h"
#include "ops/kernel.h"
#include "tests/ops/check_rule.h"

namespace weft {
namespace {

class RuleTest : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(RuleTest, HoldsOnEverySample) {
  const OpDef& op = *GetParam();
  const std::vector<OpSample> samples = op.Samples();
  ASSERT_FALSE(samples.empty()) << op.name() << " has no samples";
  for (const OpSample& sample : samples) EXPECT_TRUE(CheckRule(op, sample));
}

INSTANTIATE_TEST_SUITE_P(AllOps, RuleTest, ::testing::ValuesIn(RegisteredOps()),
                         [](const auto& info) { return std::string(info.param->name()); });

}  // namespace
}  // namespace weft
