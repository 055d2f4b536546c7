// What a plan does with the figures of the machine: ranks agree on them, and buckets follow them.

#include "mesh/machine.h"

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "examples/gpt/gpt_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

GptConfig OneBlock() { return {.vocabulary = 257, .context = 16, .layers = 1, .heads = 4, .dim = 32}; }

TEST(MachineTest, RanksHaveToAgreeOnTheMachine) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  RunRanks(4, [&](World& world) {
    const auto message = [&](const Machine& machine) {
      Gpt model(OneBlock());
      return InvalidArgumentMessage([&] { Parallelize(model, Bind(world, mesh, machine), {}); });
    };
    Machine machine;
    if (world.rank() >= 2) machine.axes["tp"] = {.beta = 2e-10};
    if (world.rank() >= 2) machine.flops = 1;
    EXPECT_EQ(
        message(machine),
        "Parallelize: the ranks' machines differ: axes.tp.beta is 2e-10 on rank 2 (dp=1, tp=0) and 1e-10 on "
        "rank 0 (dp=0, tp=0); give every rank's Bind the same Machine");
    // Also where the groups that the plan needs follow from the machine.
    Machine slow;
    if (world.rank() >= 2) slow.axes["tp"] = {.alpha = 1, .beta = 1};
    EXPECT_THAT(InvalidArgumentMessage([&] {
                  Gpt model(OneBlock());
                  Parallelize(model, Bind(world, mesh, slow),
                              GptPlan(mesh, DataPlan::kFsdp, /*sequence_parallel=*/true));
                }),
                testing::HasSubstr("Parallelize: the ranks' machines differ: axes.tp.alpha is 1 on rank 2"));
    // What differs in writing alone is the same machine.
    Gpt model(OneBlock());
    Machine written;
    if (world.rank() == 1) written.axes["tp"] = AxisCost();
    Parallelize(model, Bind(world, mesh, written), {});
  });
}

// Where a message starts at once, buckets are a twentieth of the gradients; where it takes long, they are one. No bucket_mb is
// too large.
TEST(MachineTest, BucketsAreAsLargeAsTheMachineNeeds) {
  const auto num_reductions = [](double alpha, double bucket_mb = 25) {
    int64_t calls = 0;
    RunRanks(2, [&](World& world) {
      const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
      Plan plan = GptPlan(mesh, DataPlan::kDdp, /*sequence_parallel=*/false);
      plan.set_scheduler({.bucket_mb = bucket_mb});
      Gpt model(OneBlock());
      const auto context = Bind(world, mesh, {.axes = {{"dp", {.alpha = alpha}}}});
      Parallelize(model, context, plan);
      const DTensor tokens = Full(context, DType::kI32, {4, 8}, 1, BatchLayout(mesh, plan));
      for (int step = 0; step < 2; ++step) {
        world.ledger().Clear();
        Backward(model.Loss(tokens, tokens).Mean());
      }
      if (world.rank() != 0) return;
      for (const LedgerEntry& entry : world.ledger().entries()) {
        if (entry.tag.purpose == static_cast<uint8_t>(Purpose::kGrad)) calls += entry.calls;
      }
    });
    return calls;
  };
  EXPECT_GE(num_reductions(0), 5);
  EXPECT_LE(num_reductions(5e-6), 2);
  EXPECT_LE(num_reductions(5e-6, /*bucket_mb=*/1e13), 2);
}

}  // namespace
}  // namespace weft
