// When buckets of gradients go, and how many there are: counted in the ledger.

#include "parallel/scheduler/gradient_buckets.h"

#include <cstdint>
#include <string>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/gradient_hook.h"
#include "dtensor/functions.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/linear.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/scheduler/chain.h"
#include "tests/parallel/scheduler/num_calls.h"

namespace weft {
namespace {

int64_t NumReductions(World& world) { return NumCalls(world, Purpose::kGrad); }

// The gradients of block 3 come first, while it is there.
TEST(GradientBucketsTest, NobodyWaitsForAModuleThatHasGone) {
  RunRanks(2, [](World& world) {
    Chain model;
    Plan plan = PlanNamed("fsdp");
    plan.set_scheduler({.prefetch = 0, .overlap = false});
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), plan, {.dtype = DType::kF64});
    int64_t num_before_block_0 = 0;
    model.blocks[0]->AddAfterForward([&](Module&, const DTensor& y) -> DTensor {
      const auto note = [&](const DTensor&) -> DTensor {
        num_before_block_0 = NumReductions(world);
        return {};
      };
      return OnGradient(y, note).value;
    });
    const auto pass = [&] {
      world.ledger().Clear();
      Backward(Sum(Square(model(RandomNormal(context, DType::kF64, {4, kDim}, {}, "x")))));
      return num_before_block_0;
    };
    pass();                // the order is learnt
    EXPECT_EQ(pass(), 3);  // the units of blocks 3, 2 and 1
    model.blocks.pop_back();
    model.order = {0, 1, 2};
    EXPECT_EQ(pass(), 2);
    EXPECT_EQ(pass(), 2);
    EXPECT_EQ(NumReductions(world), 4);  // three blocks, and the root's
  });
}

// Of four weights of 512 bytes each, in buckets of 600 bytes. What counts is what a rank moves: its piece, in the dtype in
// which it is summed.
TEST(GradientBucketsTest, BucketsAreCutByWhatARankMoves) {
  const auto num_buckets = [](const std::string& mesh, const Plan& entries) {
    Plan plan = entries.Merge({{"", DataParallel("dp")}});
    plan.set_scheduler({.bucket_mb = 600.5 / (1 << 20), .overlap = false});
    int64_t calls = 0;
    RunRanks(static_cast<int>(DeviceMesh::Parse(mesh).num_ranks()), [&](World& world) {
      Sequential model;
      for (int i = 0; i < 4; ++i) model.Add<Linear>(8, 8, LinearOptions{.bias = false});
      const auto context = Parallelize(model, world, DeviceMesh::Parse(mesh), plan, {.dtype = DType::kF64});
      for (int pass = 0; pass < 2; ++pass) {  // the first learns the order
        world.ledger().Clear();
        Backward(Sum(Square(model(RandomNormal(context, DType::kF64, {4, 8}, {}, "x")))));
      }
      if (world.rank() == 0) calls = NumReductions(world);
    });
    return calls;
  };
  EXPECT_EQ(num_buckets("dp=2", {}), 4);
  EXPECT_EQ(num_buckets("dp=2,tp=2", {{"*", ColumnParallel("tp")}}), 2);
  EXPECT_EQ(num_buckets("dp=2", {{"", Precision({.reduce = DType::kF32})}}), 2);
}

}  // namespace
}  // namespace weft
