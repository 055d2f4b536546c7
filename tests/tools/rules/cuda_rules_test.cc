// The validator on the device cuda: rules say which pieces go together, and the device's kernels must make of
// them what they make of the whole.

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/string_view.h"
#include "ops/op/kernel.h"
#include "tools/rules/rule_check.h"

namespace weft {
namespace {

// One of each kind: by elements, along rows, by boxes, by indices, a random one. On a GPU, gpu_check holds
// all ops to their rules.
constexpr absl::string_view kOps[] = {"gelu", "softmax", "triangle", "embedding", "random_uniform"};

class CudaRulesTest : public testing::TestWithParam<absl::string_view> {};

TEST_P(CudaRulesTest, KernelsOfPiecesMakeThePiecesOfTheWhole) {
  for (const OpDef* op : RegisteredOps()) {
    if (op->name() != GetParam()) continue;
    const RuleReport report = CheckOp(*op, {.device = DeviceType::kCuda});
    EXPECT_GT(report.cases, 0);
    for (const WrongStrategy& wrong : report.wrong) ADD_FAILURE() << wrong.ToString();
    return;
  }
  FAIL() << "there is no such op";
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaRulesTest, testing::ValuesIn(kOps));

}  // namespace
}  // namespace weft
