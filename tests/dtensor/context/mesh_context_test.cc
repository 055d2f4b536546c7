#include "dtensor/context/mesh_context.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/context/propagation_cache.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

TEST(MeshContextTest, CoordinatesAndGroups) {
  OnMesh("a=2,b=3", [](const IntrusivePtr<MeshContext>& context) {
    const int rank = context->world().rank();
    EXPECT_EQ(context->coordinate()[0], rank / 3);
    EXPECT_EQ(context->coordinate()[1], rank % 3);
    Communicator& b = context->Group({1});
    EXPECT_EQ(b.name(), "b");
    EXPECT_EQ(b.rank(), rank % 3);
    EXPECT_EQ(b.ranks(), (std::vector<int>{rank / 3 * 3, rank / 3 * 3 + 1, rank / 3 * 3 + 2}));
    EXPECT_EQ(&context->Group({1}), &b);  // pooled
    Communicator& both = context->Group({0, 1});
    EXPECT_EQ(both.name(), "a.b");
    EXPECT_EQ(both.size(), 6);
    EXPECT_EQ(both.rank(), rank);
  });
}

TEST(MeshContextTest, AllMeshesOfARankShareOneState) {
  OnMesh("a=4", [](const IntrusivePtr<MeshContext>& context) {
    const IntrusivePtr<MeshContext> grid = Bind(context, DeviceMesh::Parse("x=2,y=2"));
    EXPECT_EQ(&grid->state(), &context->state());
    const NoGradGuard no_grad(context->state());
    EXPECT_FALSE(grid->state().grad_enabled());
  });
}

TEST(MeshContextTest, CountsWhatItsCacheDoes) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 3}, 1), "[a, -]");
    const auto stats = [&] { return context->cache().stats(); };
    EXPECT_EQ(stats(), CacheStats());
    Relu(x);
    EXPECT_EQ(stats(), (CacheStats{.hits = 0, .misses = 1}));
    for (int i = 0; i < 3; ++i) Relu(x);
    EXPECT_EQ(stats(), (CacheStats{.hits = 3, .misses = 1}));
    Relu(x.Redistribute(Layout(2, 1)));
    EXPECT_EQ(stats(), (CacheStats{.hits = 3, .misses = 2}));
    EXPECT_EQ(context->cache().size(), 2);
    EXPECT_GE(context->cache().capacity(), 1000);
    // Another mesh over the same rank has a cache of its own.
    EXPECT_EQ(Bind(context, DeviceMesh::Parse("b=2"))->cache().stats(), CacheStats());
  });
}

// x w with both split by columns: split k moves w and leaves a Partial, split n gathers x and leaves pieces.
TEST(MeshContextTest, TheMachineDecidesWhichWayIsTaken) {
  const Machine free_wire = {.axes = {{"dp", {.alpha = 0, .beta = 1e-16}}}};
  RunRanks(4, [&](World& world) {
    const DeviceMesh mesh = DeviceMesh::Parse("dp=4");
    const auto product = [&](const IntrusivePtr<MeshContext>& context) {
      const DTensor x = Zeros(context, DType::kF32, {4096, 256}, Layout::Parse("[-, dp]", mesh));
      const DTensor w = Zeros(context, DType::kF32, {256, 512}, Layout::Parse("[-, dp]", mesh));
      return LayoutText(MatMul(x, w));
    };
    const IntrusivePtr<MeshContext> context = Bind(world, mesh);
    EXPECT_EQ(context->machine(), Machine());
    EXPECT_EQ(product(context), "[-, -] P{dp}");
    const IntrusivePtr<MeshContext> faster = Bind(world, mesh, free_wire);
    EXPECT_EQ(faster->machine(), free_wire);
    EXPECT_EQ(product(faster), "[-, dp]");
    // Memory so fast that a whole output costs nothing: back to the fewest bytes.
    Machine fast_memory;
    fast_memory.bytes_per_second = 1e18;
    fast_memory.axes["dp"] = {.alpha = 0, .beta = 1e-10};
    EXPECT_EQ(product(Bind(world, mesh, fast_memory)), "[-, -] P{dp}");
    // Other meshes over the same state have the same machine.
    EXPECT_EQ(Bind(faster, DeviceMesh::Parse("a=2,b=2"))->machine(), free_wire);
    EXPECT_EQ(ErrorOf([&] { Bind(world, DeviceMesh::Parse("a=4"), free_wire); }),
              "machine: axes.dp is no axis of mesh (a=4)");
    EXPECT_EQ(ErrorOf([&] { Bind(world, mesh, {.flops = -1}); }),
              "machine: flops is -1, expected a number above 0");
  });
}

TEST(MeshContextTest, Misuse) {
  RunRanks(2, [](World& world) {
    EXPECT_EQ(ErrorOf([&] { Bind(world, DeviceMesh::Parse("a=4")); }),
              "mesh a=4 needs 4 ranks; the world has 2");
    EXPECT_EQ(ErrorOf([&] {
                Bind(world, DeviceMesh({{"a", 2}}, {0, 7}));
              }),
              "mesh a=2 has rank 7; the world has ranks 0 to 1");
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("a=2"));
    EXPECT_EQ(ErrorOf([&] { Bind(context, DeviceMesh::Parse("a=3")); }),
              "mesh a=3 needs 3 ranks; the world has 2");
    // A mesh that this rank is not in.
    EXPECT_EQ(
        ErrorOf([&] {
          Bind(context, DeviceMesh({{"a", 1}}, {1}));
        }),
        world.rank() == 1 ? "nothing was thrown" : "rank 0 is not in mesh (a=1) of 1 ranks; the world has 2");
    EXPECT_EQ(ErrorOf([&] {
                Bind(context, DeviceMesh({{"a", 2}}, {1, 0}));
              }),
              "mesh a=2 has ranks [1, 0], expected them to ascend in row-major order: list the axis that "
              "varies slowest over the ranks first");
  });
}

// Communicators order their members by rank: over both axes no group could be made of these.
TEST(MeshContextTest, RanksAscendInRowMajorOrder) {
  RunRanks(4, [](World& world) {
    for (const std::vector<int>& ranks : {std::vector<int>{0, 2, 1, 3}, std::vector<int>{0, 1, 3, 2}}) {
      const DeviceMesh mesh({{"a", 2}, {"b", 2}}, ranks);
      const std::string message =
          absl::StrCat("mesh a=2, b=2 has ranks [", absl::StrJoin(ranks, ", "),
                       "], expected them to ascend in row-major order: list the axis that varies slowest "
                       "over the ranks first");
      EXPECT_EQ(ErrorOf([&] { Bind(world, mesh); }), message);
      EXPECT_EQ(ErrorOf([&] { Bind(world, mesh.Slice({{"a", 0}})); }), message);
    }
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("a=2, b=2"));
    EXPECT_EQ(context->Group({0, 1}).ranks(), (std::vector<int>{0, 1, 2, 3}));
    EXPECT_EQ(ErrorOf([&] {
                context->Group({1, 0});
              }),
              "mesh a=2, b=2: axis group b.a has ranks [0, 2, 1, 3], expected them to ascend: list the axes "
              "in the mesh's order");
  });
}

TEST(RankStateTest, GuardsNest) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    EXPECT_EQ(state.purpose(), Purpose::kActivation);
    {
      const PurposeGuard outer(state, Purpose::kParam);
      const PathGuard path(state, state.PathId("mlp.up"));
      {
        const PurposeGuard inner(state, Purpose::kGrad);
        EXPECT_EQ(state.tag(), (CommTag{static_cast<uint8_t>(Purpose::kGrad), state.PathId("mlp.up")}));
        const NoGradGuard no_grad(state);
        const NoGradGuard again(state);
        EXPECT_FALSE(state.grad_enabled());
      }
      EXPECT_TRUE(state.grad_enabled());
      EXPECT_EQ(state.purpose(), Purpose::kParam);
      EXPECT_EQ(state.PathName(state.path_id()), "mlp.up");
    }
    EXPECT_EQ(state.tag(), (CommTag{static_cast<uint8_t>(Purpose::kActivation), 0}));
  });
}

TEST(RankStateTest, BatchOffsetsAreStatedByTheInnermostGuard) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    EXPECT_EQ(state.batch_offset(), 0);
    {
      const BatchOffsetGuard microbatch(state, 3);
      EXPECT_EQ(state.batch_offset(), 3);
      {
        const BatchOffsetGuard no_batch(state, 0);
        EXPECT_EQ(state.batch_offset(), 0);
      }
      EXPECT_EQ(ErrorOf([&] { const BatchOffsetGuard negative(state, -1); }),
                "BatchOffsetGuard: expected an offset of at least 0, got -1");
      EXPECT_EQ(state.batch_offset(), 3);
    }
    EXPECT_EQ(state.batch_offset(), 0);
  });
}

TEST(RankStateTest, PathsAreNumberedOnce) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    EXPECT_EQ(state.PathId(""), 0);
    const int a = state.PathId("a");
    const int b = state.PathId("b");
    EXPECT_NE(a, b);
    EXPECT_EQ(state.PathId("a"), a);
    EXPECT_EQ(state.PathName(b), "b");
  });
}

TEST(RankStateTest, TheFlightRecorderKnowsWhereTheRankComputes) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    const auto place = [&] { return state.world().flight_recorder().Snapshot().place; };
    EXPECT_EQ(place(), "");
    {
      const PathGuard path(state, state.PathId("blocks.4"));
      EXPECT_EQ(place(), "forward of blocks.4");
      {
        const PathGuard inner(state, state.PathId("blocks.4.mlp"));
        EXPECT_EQ(place(), "forward of blocks.4.mlp");
      }
      EXPECT_EQ(place(), "forward of blocks.4");
    }
    EXPECT_EQ(place(), "");
  });
}

TEST(RankStateTest, CallNumbersCountByPath) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    EXPECT_EQ(state.NextCallNumber(), 0u);
    EXPECT_EQ(state.NextCallNumber(), 1u);
    {
      const PathGuard path(state, state.PathId("a"));
      EXPECT_EQ(state.NextCallNumber(), 0u);
    }
    EXPECT_EQ(state.NextCallNumber(), 2u);
    state.ResetCallNumbers();
    EXPECT_EQ(state.NextCallNumber(), 0u);
  });
}

TEST(RankStateTest, PurposesHaveNames) {
  std::vector<std::string> names;
  for (Purpose purpose : {Purpose::kActivation, Purpose::kParam, Purpose::kGrad, Purpose::kLoss,
                          Purpose::kNorm, Purpose::kMetric}) {
    names.emplace_back(PurposeName(purpose));
  }
  EXPECT_THAT(names, testing::ElementsAre("activation", "param", "grad", "loss", "norm", "metric"));
}

}  // namespace
}  // namespace weft
