// When buckets of gradients go, and how many there are: counted in the ledger.

#include "parallel/scheduler/gradient_buckets.h"

#include <cstdint>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/gradient_hook.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/scheduler/chain.h"

namespace weft {
namespace {

int64_t NumReductions(World& world) {
  int64_t calls = 0;
  for (const LedgerEntry& entry : world.ledger().entries()) {
    if (entry.tag.purpose == static_cast<uint8_t>(Purpose::kGrad)) calls += entry.calls;
  }
  return calls;
}

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

}  // namespace
}  // namespace weft
