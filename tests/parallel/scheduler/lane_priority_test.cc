// Priority between lanes, as a plan asks for it: who waits for whom, on what a rank has under way. What a turn is:
// tests/runtime/comm/link_turns_test.cc.

#include <chrono>
#include <cstdint>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/redistribute_each.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/comm/link_turns.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/parallel/scheduler/chain.h"

namespace weft {
namespace {

// How often two gathers of 4 MiB each, on `lane`, are held while rank 0 has something of `moving` under way; with what they
// bring.
struct Gathered {
  int64_t num_held = 0;
  std::vector<float> values;
};

Gathered GatherBeside(Lane lane, Lane moving, bool lane_priority) {
  Gathered gathered;
  RunRanks(2, [&](World& world) {
    Chain model;
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    Plan plan = PlanNamed("fsdp");
    plan.set_scheduler({.lane_priority = lane_priority});
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF32});
    LinkTurns& turns = *context->state().link_turns();
    EXPECT_EQ(turns.on(), lane_priority);
    LinkTurns::Turn urgent(turns, LanePriority(moving), kEveryLink, std::chrono::hours(1));
    if (world.rank() == 0) urgent.Begin();
    const DTensor x =
        RandomNormal(context, DType::kF32, {2 << 20}, Layout::Parse("[dp]", mesh), /*stream=*/"x");
    const std::vector<DTensor> whole =
        RedistributeEach({{.source = x, .to = Layout(1, 1)}, {.source = x, .to = Layout(1, 1)}}, lane);
    const Tensor value = whole[1].ToLocal();
    if (world.rank() != 0) return;
    gathered.num_held = turns.num_held();
    gathered.values.assign(value.data<float>(), value.data<float>() + value.num_elements());
  });
  return gathered;
}

TEST(LanePriorityTest, WhatIsNeededFirstGoesFirst) {
  const Gathered off = GatherBeside(Lane::kGrad, Lane::kParam, /*lane_priority=*/false);
  EXPECT_EQ(off.num_held, 0);
  const auto held = [&](Lane lane, Lane moving) {
    const Gathered gathered = GatherBeside(lane, moving, /*lane_priority=*/true);
    EXPECT_EQ(gathered.values, off.values) << LaneName(lane) << " beside " << LaneName(moving);
    return gathered.num_held > 0;
  };
  EXPECT_TRUE(held(Lane::kGrad, Lane::kParam));
  EXPECT_TRUE(held(Lane::kReplica, Lane::kParam));
  EXPECT_TRUE(held(Lane::kParam, Lane::kInline));
  EXPECT_FALSE(held(Lane::kParam, Lane::kGrad));
  EXPECT_FALSE(held(Lane::kGrad, Lane::kReplica));
  EXPECT_FALSE(held(Lane::kReplica, Lane::kGrad));
  EXPECT_FALSE(held(Lane::kInline, Lane::kParam));
}

TEST(LanePriorityTest, AModelThatIsSpreadAnewMayDoWithout) {
  RunRanks(2, [](World& world) {
    Chain model;
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("dp=2"));
    Plan plan = PlanNamed("fsdp");
    for (const bool lane_priority : {true, false, true}) {
      plan.set_scheduler({.lane_priority = lane_priority});
      Parallelize(model, context, plan, {.dtype = DType::kF32});
      EXPECT_EQ(context->state().link_turns()->on(), lane_priority);
    }
  });
}

}  // namespace
}  // namespace weft
