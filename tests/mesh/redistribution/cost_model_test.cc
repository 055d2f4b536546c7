#include "mesh/redistribution/cost_model.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "mesh/redistribution/greedy.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

class CostModelTest : public ::testing::Test {
 protected:
  double Microseconds(absl::string_view from, absl::string_view to, const Shape& shape) const {
    return model_.Microseconds(PlanGreedy(Layout::Parse(from, mesh_), Layout::Parse(to, mesh_), mesh_),
                               {DType::kF32, shape});
  }

  const DeviceMesh mesh_ = DeviceMesh::Parse("dp=4, tp=2");
  const Machine machine_ = {
      .axes = {{"dp", {.alpha = 10e-6, .beta = 0.25e-6}}, {"tp", {.alpha = 2e-6, .beta = 0.5e-6}}},
  };
  const CostModel model_{mesh_, machine_};
};

constexpr double kStep = CostModel::kStepMicroseconds;

TEST_F(CostModelTest, OneStepByHand) {
  // 16 x 8 f32 is 512 bytes. Along dp: two doublings, three quarters of the bytes that end up or begin there.
  EXPECT_DOUBLE_EQ(Microseconds("[dp, -]", "[-, -]", {16, 8}), kStep + 2 * 10 + 0.25 * 384);
  EXPECT_DOUBLE_EQ(Microseconds("[-, -] P{dp}", "[dp, -]", {16, 8}), kStep + 2 * 10 + 0.25 * 384);
  EXPECT_DOUBLE_EQ(Microseconds("[-, -] P{dp}", "[-, -]", {16, 8}), kStep + 4 * 10 + 0.25 * 768);
  EXPECT_DOUBLE_EQ(Microseconds("[tp.dp, -]", "[tp, -]", {16, 8}), kStep + 2 * 10 + 0.25 * 192);
  EXPECT_DOUBLE_EQ(Microseconds("[tp, -]", "[-, -]", {16, 8}), kStep + 2 + 0.5 * 256);
  // Three peers; three quarters of 128 bytes change hands.
  EXPECT_DOUBLE_EQ(Microseconds("[dp, -]", "[-, dp]", {16, 8}), kStep + 3 * 10 + 0.25 * 96);
}

TEST_F(CostModelTest, MovesTakeOneRoundForEachPeer) {
  const auto microseconds = [&](StepKind kind, absl::string_view from, absl::string_view to) {
    const RedistributionStep step = {.kind = kind, .axes = {0, 1}, .result = Layout::Parse(to, mesh_)};
    return model_.StepMicroseconds(step, Layout::Parse(from, mesh_), {DType::kF32, {16, 8}});
  };
  // Each rank's 64 bytes go to one other, by the slower of both axes.
  EXPECT_DOUBLE_EQ(microseconds(StepKind::kPermute, "[dp.tp, -]", "[tp.dp, -]"), kStep + 2 + 0.5 * 64);
  // A rank wants half of the tensor, four others' pieces, and some hold none of it.
  EXPECT_DOUBLE_EQ(microseconds(StepKind::kSendRegions, "[dp.tp, -]", "[tp, -]"), kStep + 4 * 2 + 0.5 * 256);
}

TEST_F(CostModelTest, NothingSentCostsNothing) {
  EXPECT_EQ(Microseconds("[-, -]", "[dp, tp]", {16, 8}), 0);
  EXPECT_EQ(Microseconds("[-, -]", "[-, -] P{dp}", {16, 8}), 0);
  const DeviceMesh one = DeviceMesh::Parse("dp=1");
  EXPECT_EQ(CostModel(one).Microseconds(
                PlanGreedy(Layout::Parse("[dp]", one), Layout::Parse("[-]", one), one), {DType::kF32, {16}}),
            0);
}

TEST_F(CostModelTest, TheSlowestAxisHoldsForAll) {
  // Eight ranks, six rounds. Long messages are slower along tp, short ones along dp.
  EXPECT_DOUBLE_EQ(Microseconds("[-, -] P{dp,tp}", "[-, -]", {16, 8}), kStep + 6 * 2 + 0.5 * 896);
  EXPECT_DOUBLE_EQ(Microseconds("[-, -] P{dp,tp}", "[-, -]", {1, 8}), kStep + 6 * 10 + 0.25 * 56);
}

TEST_F(CostModelTest, StepsAddUpAndTheLargestPieceCounts) {
  // 5 x 3: the worst rank holds 3 x 3 along tp, 9 numbers; of those it reduces 3, and gets 6.
  EXPECT_DOUBLE_EQ(Microseconds("[tp, -] P{dp}", "[-, -]", {5, 3}),
                   (kStep + 4 * 10 + 0.25 * 4 * (3 * 3 + 6)) + (kStep + 2 + 0.5 * 4 * 9));
}

TEST_F(CostModelTest, DefaultsAndMisuse) {
  EXPECT_EQ(CostModel(mesh_).axis(1), AxisCost());
  EXPECT_EQ(CostModel(mesh_).machine(), Machine());
  EXPECT_EQ(model_.axis(0), (AxisCost{.alpha = 10e-6, .beta = 0.25e-6}));
  EXPECT_EQ(model_.machine(), machine_);
  // What is not named costs `other_axes`.
  const CostModel other(mesh_, {.axes = {{"tp", {.alpha = 1}}}, .other_axes = {.alpha = 2}});
  EXPECT_EQ(other.axis(0).alpha, 2);
  EXPECT_EQ(other.axis(1).alpha, 1);
  try {
    CostModel(mesh_, {.axes = {{"tp", {.beta = -1}}}});
    FAIL() << "a byte that takes less than no time";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "machine: axes.tp.beta is -1, expected seconds per byte of at least 0");
  }
}

}  // namespace
}  // namespace weft
