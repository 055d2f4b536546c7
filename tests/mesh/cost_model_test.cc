#include "mesh/cost_model.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "mesh/redistribution_planner.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

class CostModelTest : public ::testing::Test {
 protected:
  double Microseconds(absl::string_view from, absl::string_view to, const Shape& shape) const {
    return model_.Microseconds(
        PlanRedistribution(Layout::Parse(from, mesh_), Layout::Parse(to, mesh_), mesh_), shape, DType::kF32);
  }

  const DeviceMesh mesh_ = DeviceMesh::Parse("dp=4, tp=2");
  const CostModel model_{mesh_, {{.alpha_us = 10, .us_per_byte = 0.25}, {.alpha_us = 2, .us_per_byte = 0.5}}};
};

TEST_F(CostModelTest, OneStepByHand) {
  // 16 x 8 f32 is 512 bytes: three messages of 128 bytes along dp.
  EXPECT_DOUBLE_EQ(Microseconds("[dp, -]", "[-, -]", {16, 8}), 3 * (10 + 0.25 * 128));
  EXPECT_DOUBLE_EQ(Microseconds("[-, -] P{dp}", "[dp, -]", {16, 8}), 3 * (10 + 0.25 * 128));
  EXPECT_DOUBLE_EQ(Microseconds("[-, -] P{dp}", "[-, -]", {16, 8}), 6 * (10 + 0.25 * 128));
  EXPECT_DOUBLE_EQ(Microseconds("[dp, -]", "[-, dp]", {16, 8}), 3 * (10 + 0.25 * 32));
  EXPECT_DOUBLE_EQ(Microseconds("[tp.dp, -]", "[tp, -]", {16, 8}), 3 * (10 + 0.25 * 64));
  EXPECT_DOUBLE_EQ(Microseconds("[tp, -]", "[-, -]", {16, 8}), 2 + 0.5 * 256);
}

TEST_F(CostModelTest, NothingSentCostsNothing) {
  EXPECT_EQ(Microseconds("[-, -]", "[dp, tp]", {16, 8}), 0);
  EXPECT_EQ(Microseconds("[-, -]", "[-, -] P{dp}", {16, 8}), 0);
  const DeviceMesh one = DeviceMesh::Parse("dp=1");
  EXPECT_EQ(
      CostModel(one).Microseconds(
          PlanRedistribution(Layout::Parse("[dp]", one), Layout::Parse("[-]", one), one), {16}, DType::kF32),
      0);
}

TEST_F(CostModelTest, TheSlowestAxisHoldsForAll) {
  // Eight ranks. Long messages are slower along tp (64 bytes: 26 against 34), short ones along dp (4 bytes:
  // 11 against 4).
  EXPECT_DOUBLE_EQ(Microseconds("[-, -] P{dp,tp}", "[-, -]", {16, 8}), 14 * (2 + 0.5 * 64));
  EXPECT_DOUBLE_EQ(Microseconds("[-, -] P{dp,tp}", "[-, -]", {1, 8}), 14 * (10 + 0.25 * 4));
}

TEST_F(CostModelTest, StepsAddUpAndTheLargestPieceCounts) {
  // 5 x 3: the worst rank holds 3 x 3 along tp.
  EXPECT_DOUBLE_EQ(Microseconds("[tp, -] P{dp}", "[-, -]", {5, 3}), 6 * (10 + 0.25 * 9) + (2 + 0.5 * 30));
}

TEST_F(CostModelTest, DefaultsAndMisuse) {
  EXPECT_EQ(CostModel(mesh_).axis(1), AxisCost());
  EXPECT_EQ(model_.axis(0), (AxisCost{.alpha_us = 10, .us_per_byte = 0.25}));
  try {
    CostModel(mesh_, {AxisCost()});
    FAIL() << "one cost for two axes";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "mesh (dp=4, tp=2) has 2 axes, but 1 costs were given");
  }
}

}  // namespace
}  // namespace weft
