// What propagation chooses over several mesh axes, carried out, for every op that has a kernel.

#include <string>

#include "gtest/gtest.h"
#include "ops/kernel.h"
#include "tests/ops/check_strategies.h"

namespace weft {
namespace {

class StrategyTest : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(StrategyTest, GivesTheWholeResultOnEveryLayout) {
  const OpDef& op = *GetParam();
  for (const OpSample& sample : op.Samples()) CheckStrategies(op, sample, /*rounds=*/5);
}

INSTANTIATE_TEST_SUITE_P(AllOps, StrategyTest, ::testing::ValuesIn(RegisteredOps()),
                         [](const auto& info) { return std::string(info.param->name()); });

}  // namespace
}  // namespace weft
