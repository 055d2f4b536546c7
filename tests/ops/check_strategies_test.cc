// Propagation over several axes, carried out on the toy ops: every kind of rule, on layouts drawn at random.

#include "tests/ops/check_strategies.h"

#include "gtest/gtest.h"
#include "ops/kernel.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

TEST(CheckStrategiesTest, ToyOpsGiveTheWholeResultOnEveryLayout) {
  ASSERT_NE(FindKernel(kToyMatmul, DeviceType::kCpu), nullptr);
  for (const OpDef* op : RegisteredOps()) {
    SCOPED_TRACE(op->name());
    const StrategyCounts counts = CheckStrategies(*op, op->Samples()[0], /*rounds=*/40);
    EXPECT_GT(counts.run, 10);
    EXPECT_GT(counts.split + counts.partial, 0) << "nothing was split: the test tests nothing";
    if (*op->in_place() == '\0') {
      EXPECT_EQ(counts.refused, 0);
    } else {
      EXPECT_GT(counts.refused, 0);
    }
    if (*op->linear() != '\0') {
      EXPECT_GT(counts.partial, 0);
    }
  }
}

}  // namespace
}  // namespace weft
