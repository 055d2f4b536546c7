// Random bits: the same on every layout.

#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
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

// The scale is 2, by which terms of whole numbers stay exact: a sum or an average stays one, and nothing moves.
TEST_P(DropoutTest, PartialsHaveTheBitsOfOneRank) {
  const Tensor full = WholeNumbers(GetParam(), {5, 7});
  const auto draw = [&](const IntrusivePtr<MeshContext>& context, const Layout& layout) {
    context->state().set_seed(42);
    context->state().ResetCallNumbers();
    return Dropout(Lay(context, full, layout), 0.5);
  };
  Tensor expected;
  OnMesh("",
         [&](const IntrusivePtr<MeshContext>& context) { expected = draw(context, Layout(2, 0)).ToLocal(); });
  const auto all = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const Layout& layout : AllLayouts(context->mesh(), 2, all)) {
      const AxisList axes = layout.PartialAxes();
      if (axes.empty()) continue;
      const ReduceOp op = layout.partial_op(axes[0]);
      const bool stays = op == ReduceOp::kSum || op == ReduceOp::kAvg;
      context->world().ledger().Clear();
      const DTensor dropped = draw(context, layout);
      EXPECT_EQ(dropped.layout().PartialAxes(), stays ? axes : AxisList()) << layout;
      EXPECT_EQ(LedgerText(*context).empty(), stays) << layout;
      EXPECT_TRUE(SameBits(dropped.FullTensor(), expected)) << layout;
    }
  });
}

struct Draw {
  const char* name;
  DTensor value;
};

// All that a forward may draw at random, from x [b, s, h, e] on: drawn as one call of the root module draws
// it.
std::vector<Draw> DrawAll(const DTensor& x) {
  const IntrusivePtr<MeshContext>& context = x.context();
  context->state().ResetCallNumbers();
  const DTensor leaf = x.RequiresGrad();
  const DTensor dropped = Dropout(leaf, 0.4);
  {
    const BatchOffsetGuard later(context->state(), 1000);  // backward takes forward's
    Backward(Sum(dropped));
  }
  return {
      {"dropout", dropped.Detach()},
      {"dropout's gradient", leaf.grad()},
      {"attention", ScaledDotProductAttention(x, x, x, {.causal = true, .dropout = 0.4})},
      {"uniform", RandomUniformLike(x)},
      {"normal", RandomNormalLike(x)},
      {"normal of a name", RandomNormalLike(x, "noise")},
      {"bernoulli", Bernoulli(context, DType::kBool, x.shape(), 0.4, x.layout())},
      {"bernoulli of probabilities", Bernoulli(FullLike(x, 0.4))},
  };
}

// A batch of 7 in microbatches of 3, 2 and 2, whose rows begin within blocks of random words.
TEST_P(DropoutTest, MicrobatchesHaveTheBitsOfTheWholeBatch) {
  const Tensor batch = WholeNumbers(GetParam(), {7, 3, 2, 5});
  std::vector<Tensor> expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    context->state().set_seed(42);
    for (const Draw& draw : DrawAll(Lay(context, batch, Layout(4, 0)))) {
      expected.push_back(draw.value.FullTensor());
    }
  });
  const auto rows = [](const Tensor& x, int64_t first, int64_t count) {
    return CloneTensor(x.Slice(0, first, count), MakeCpuAllocator());
  };
  for (const char* mesh : {"", "dp=2"}) {
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      RankState& state = context->state();
      state.set_seed(42);
      const int num_axes = context->mesh().num_axes();
      const Layout layout = num_axes == 0 ? Layout(4, 0) : Layout(4, 1).WithShard(0, 0);
      int64_t offset = 0;
      for (const int64_t count : {3, 2, 2}) {
        const BatchOffsetGuard guard(state, offset);
        const std::vector<Draw> draws = DrawAll(Lay(context, rows(batch, offset, count), layout));
        for (size_t i = 0; i < draws.size(); ++i) {
          EXPECT_TRUE(SameBits(draws[i].value.FullTensor(), rows(expected[i], offset, count)))
              << draws[i].name << " of rows " << offset << " on, mesh '" << mesh << "'";
        }
        offset += count;
      }
    });
  }
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

// A block draws, twice, in its place and microbatch; then, in another step, it is run again in a scope.
TEST(RandomTest, AScopeReplaysWhatWasDrawnAndLeavesNoTrace) {
  for (const char* mesh : {"", "dp=2"}) {
    OnMesh(mesh, [](const IntrusivePtr<MeshContext>& context) {
      RankState& state = context->state();
      const DTensor x = Full(context, DType::kF32, {6, 5}, 1);
      const auto draw = [&] { return Dropout(x, 0.5).FullTensor(); };
      const auto run = [&](bool replays) {
        state.set_seed(42);
        state.set_step(3);
        state.ResetCallNumbers();
        std::vector<Tensor> drawn = {draw()};
        RandomSnapshot snapshot;
        {
          const PathGuard path(state, state.PathId("blocks.0"));
          const BatchOffsetGuard offset(state, 6);
          drawn.push_back(draw());
          snapshot = state.random_snapshot();
          drawn.push_back(draw());
          drawn.push_back(draw());
        }
        drawn.push_back(draw());
        state.set_step(4);
        const RandomSnapshot before = state.random_snapshot();
        const BatchOffsetGuard elsewhere(state, 12);
        if (replays) {
          const RandomScope scope(state, snapshot);
          EXPECT_EQ(state.random_snapshot(), snapshot);
          EXPECT_EQ(state.step(), 3u);
          EXPECT_EQ(state.batch_offset(), 6);
          EXPECT_EQ(state.PathName(state.path_id()), "blocks.0");
          EXPECT_TRUE(SameBits(draw(), drawn[2]));
          {
            const RandomScope inner(state, snapshot);
            EXPECT_TRUE(SameBits(draw(), drawn[2]));
          }
          EXPECT_TRUE(SameBits(draw(), drawn[3]));
          EXPECT_FALSE(SameBits(draw(), drawn[3]));
          state.ResetCallNumbers();  // as a root module does
          state.set_step(17);
        }
        EXPECT_EQ(state.step(), before.step);
        EXPECT_EQ(state.path_id(), before.path_id);
        EXPECT_EQ(state.random_snapshot().call_numbers, before.call_numbers);
        EXPECT_EQ(state.batch_offset(), 12);
        drawn.push_back(draw());
        drawn.push_back(draw());
        return drawn;
      };
      const std::vector<Tensor> plain = run(/*replays=*/false);
      const std::vector<Tensor> replayed = run(/*replays=*/true);
      ASSERT_EQ(plain.size(), replayed.size());
      for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(SameBits(plain[i], replayed[i])) << i;
      // A snapshot outlives any number of scopes, and one that ends by an exception leaves no trace either.
      const RandomSnapshot now = state.random_snapshot();
      EXPECT_THROW(
          {
            const RandomScope scope(state, RandomSnapshot());
            draw();
            throw 1;
          },
          int);
      EXPECT_EQ(state.random_snapshot(), now);
    });
  }
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
