// Random bits: the same on every layout.

#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

class DropoutTest : public testing::TestWithParam<DType> {};

TEST_P(DropoutTest, SameBitsForEveryLayout) {
  const Tensor full = WholeNumbers(GetParam(), {5, 7});
  const auto draws = [&](const IntrusivePtr<MeshContext>& context, const Layout& layout) {
    context->state().set_seed(42);
    context->state().ResetCallNumbers();
    const DTensor x = Lay(context, full, layout);
    return std::vector<Tensor>{Dropout(x, 0.4).FullTensor(), Dropout(x, 0.4).FullTensor()};
  };
  std::vector<Tensor> expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) { expected = draws(context, Layout(2, 0)); });
  EXPECT_FALSE(SameBits(expected[0], expected[1]));
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const Layout& layout : AllLayouts(context->mesh(), 2, {})) {
      const std::vector<Tensor> got = draws(context, layout);
      EXPECT_TRUE(SameBits(got[0], expected[0])) << layout;
      EXPECT_TRUE(SameBits(got[1], expected[1])) << layout;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, DropoutTest, testing::Values(DType::kF32, DType::kF64, DType::kBF16));

TEST(RandomTest, DropoutDependsOnStepPathAndCall) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    const DTensor x = Full(context, DType::kF32, {64}, 1);
    const Tensor first = Dropout(x, 0.5).ToLocal();
    state.ResetCallNumbers();
    EXPECT_TRUE(SameBits(Dropout(x, 0.5).ToLocal(), first));
    EXPECT_FALSE(SameBits(Dropout(x, 0.5).ToLocal(), first));
    state.ResetCallNumbers();
    state.set_step(1);
    EXPECT_FALSE(SameBits(Dropout(x, 0.5).ToLocal(), first));
    state.ResetCallNumbers();
    state.set_step(0);
    const PathGuard path(state, state.PathId("blocks.0"));
    EXPECT_FALSE(SameBits(Dropout(x, 0.5).ToLocal(), first));
    state.set_training(false);
    EXPECT_EQ(Dropout(x, 0.5).impl(), x.impl());
    state.set_training(true);
    EXPECT_EQ(Dropout(x, 0).impl(), x.impl());
  });
}

TEST(RandomTest, NormalHasTheSameBitsOnEveryLayout) {
  Tensor expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    expected = RandomNormal(context, DType::kF32, {5, 3}, Layout(2, 0), "x").ToLocal();
  });
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const Layout& layout : AllLayouts(context->mesh(), 2, {})) {
      const DTensor x = RandomNormal(context, DType::kF32, {5, 3}, layout, "x");
      EXPECT_TRUE(SameBits(x.FullTensor(), expected)) << layout;
    }
  });
}

}  // namespace
}  // namespace weft
