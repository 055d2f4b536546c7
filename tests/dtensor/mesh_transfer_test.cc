#include "dtensor/mesh_transfer.h"

#include <vector>

#include "dtensor/context/mesh_transfer_cache.h"
#include "gtest/gtest.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "mesh/redistribution/planner.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

DeviceMesh MeshOver(std::vector<MeshAxis> axes, std::vector<int> ranks) {
  return DeviceMesh(std::move(axes), std::move(ranks));
}

// Bytes that the two meshes' own redistributions and the transfer between them move.
int64_t PlannedBytes(const MeshTransferEnds& ends) {
  const Shape& shape = ends.type.shape;
  const auto own = [&](const DeviceMesh& mesh, const Layout& from, const Layout& to) {
    return TotalBytes(PlanRedistribution(from, to, ends.type, mesh, CostModel(mesh)), ends.type, mesh);
  };
  const Layout reduced = ReducedLayout(ends.from, shape, ends.from_mesh);
  const Layout landing = WithoutPartial(ends.to);
  const MeshTransfer transfer = PlanMeshTransfer(ends.from_mesh, reduced, ends.to_mesh, landing, shape);
  return own(ends.from_mesh, ends.from, reduced) + own(ends.to_mesh, landing, ends.to) +
         transfer.NumMoved() * ItemSize(ends.type.dtype);
}

// Moves every combination of layouts on a world of `world_size`, and checks each piece and the ledgers' sum.
void CheckTransfers(int world_size, const DeviceMesh& from_mesh, const DeviceMesh& to_mesh,
                    const Shape& shape) {
  std::vector<MeshTransferEnds> all;
  for (const Layout& from : AllLayouts(from_mesh, shape.ndim(), {ReduceOp::kSum})) {
    for (const Layout& to : AllLayouts(to_mesh, shape.ndim(), {ReduceOp::kSum})) {
      all.push_back({from_mesh, from, to_mesh, to, {DType::kF32, shape}});
    }
  }
  const Tensor full = WholeNumbers(DType::kF32, shape);
  std::vector<std::vector<Tensor>> results(all.size(), std::vector<Tensor>(world_size));
  std::vector<std::vector<int64_t>> bytes(all.size(), std::vector<int64_t>(world_size));
  RunRanks(world_size, [&](World& world) {
    const int rank = world.rank();
    IntrusivePtr<MeshContext> source, target;
    if (from_mesh.Contains(rank)) source = Bind(world, from_mesh);
    if (to_mesh.Contains(rank)) target = source ? Bind(source, to_mesh) : Bind(world, to_mesh);
    if (!source && !target) return;  // takes no part
    for (size_t i = 0; i < all.size(); ++i) {
      const DTensor value = source ? Lay(source, full, all[i].from) : DTensor();
      Redistribute(all[i], value, target);
      world.ledger().Clear();
      const DTensor result = Redistribute(all[i], value, target);  // by the plan that the first has left
      EXPECT_EQ(result.defined(), target != nullptr);
      if (result.defined()) results[i][rank] = CloneTensor(result.ToLocal(), world.allocator());
      bytes[i][rank] = world.ledger().num_bytes();
    }
  });
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string what =
        absl::StrCat(all[i].from.ToString(from_mesh), " to ", all[i].to.ToString(to_mesh));
    const Layout whole = WithoutPartial(all[i].to);
    for (int rank : to_mesh.ranks()) {
      std::vector<Tensor> terms;
      for (int member : to_mesh.GroupOf(rank, all[i].to.PartialAxes())) terms.push_back(results[i][member]);
      ASSERT_TRUE(SameBits(ReduceTerms(terms, all[i].to, to_mesh), PieceOf(full, whole, to_mesh, rank)))
          << what << ", rank " << rank;
    }
    int64_t total = 0;
    for (int64_t rank_bytes : bytes[i]) total += rank_bytes;
    ASSERT_EQ(total, PlannedBytes(all[i])) << what;
  }
}

TEST(MeshTransferTest, OtherShapesOfTheSameRanks) {
  CheckTransfers(4, DeviceMesh::Parse("a=2,b=2"), DeviceMesh::Parse("x=4"), {5, 6});
  CheckTransfers(4, DeviceMesh::Parse("x=4"), DeviceMesh::Parse("a=2,b=2"), {3, 7});
}

TEST(MeshTransferTest, OtherRanks) {
  CheckTransfers(6, MeshOver({{"a", 2}}, {0, 3}), MeshOver({{"x", 3}}, {1, 2, 5}), {7, 4});
}

TEST(MeshTransferTest, SomeOfTheRanks) {
  const DeviceMesh all = DeviceMesh::Parse("a=2,b=2"), one = MeshOver({}, {2}),
                   two = MeshOver({{"x", 2}}, {1, 3});
  CheckTransfers(4, all, two, {5, 3});
  CheckTransfers(4, two, all, {5, 3});
  CheckTransfers(4, all, one, {5, 3});
  CheckTransfers(4, one, all, {5, 3});
}

TEST(MeshTransferTest, OverlappingRanksAndEdgeShapes) {
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1, 2}}) {
    CheckTransfers(5, MeshOver({{"a", 3}}, {0, 1, 2}), MeshOver({{"x", 3}}, {2, 3, 4}), shape);
  }
}

TEST(MeshTransferTest, WithinOneWorldByTensor) {
  RunRanks(4, [](World& world) {
    const IntrusivePtr<MeshContext> source = Bind(world, DeviceMesh::Parse("dp=4"));
    const IntrusivePtr<MeshContext> target = Bind(source, DeviceMesh::Parse("dp=2,tp=2"));
    const Tensor full = WholeNumbers(DType::kF32, {6, 8});
    const Layout layout = Layout::Parse("[tp, dp]", target->mesh());
    const DTensor moved = Redistribute(Lay(source, full, "[dp, -]"), target, layout);
    EXPECT_EQ(moved.ToString(), "f32[6, 8] [tp, dp]");
    EXPECT_TRUE(SameBits(moved.ToLocal(), PieceOf(full, layout, target->mesh(), world.rank())));
    EXPECT_EQ(world.ledger().entries().back().group, "(dp=4) to (dp=2, tp=2)");
  });
}

TEST(MeshTransferTest, ATransferIsPlannedOnce) {
  RunRanks(4, [](World& world) {
    const IntrusivePtr<MeshContext> source = Bind(world, DeviceMesh::Parse("dp=4"));
    const IntrusivePtr<MeshContext> target = Bind(source, DeviceMesh::Parse("dp=2,tp=2"));
    const MeshTransferCache& cache = source->state().mesh_transfers();
    const Layout layout = Layout::Parse("[tp, dp]", target->mesh());
    const auto move = [&](const Shape& shape, absl::string_view from) {
      Redistribute(Lay(source, WholeNumbers(DType::kF32, shape), from), target, layout);
    };
    move({6, 8}, "[dp, -]");
    EXPECT_EQ(cache.stats(), (CacheStats{.misses = 1}));
    move({6, 8}, "[dp, -]");
    EXPECT_EQ(cache.stats(), (CacheStats{.hits = 1, .misses = 1}));
    move({6, 9}, "[dp, -]");
    move({6, 8}, "[-, dp]");
    // A mesh of as many ranks that is another.
    const IntrusivePtr<MeshContext> other = Bind(source, DeviceMesh::Parse("tp=2,dp=2"));
    Redistribute(Lay(source, WholeNumbers(DType::kF32, {6, 8}), "[dp, -]"), other, layout);
    EXPECT_EQ(cache.stats(), (CacheStats{.hits = 1, .misses = 4}));
  });
}

TEST(MeshTransferTest, Misuse) {
  RunRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> a = Bind(world, DeviceMesh::Parse("a=2"));
    const IntrusivePtr<MeshContext> x = Bind(a, DeviceMesh::Parse("x=2"));
    const DTensor value = Lay(a, WholeNumbers(DType::kF32, {4}), "[a]");
    const Layout to = Layout(1, 1);
    EXPECT_EQ(ErrorOf([&] { Redistribute(value, x, Layout(2, 1)); }),
              "layout [-, -] has 2 dims over 1 axes; the tensor's shape is [4] and its mesh (x=2)");
    const MeshTransferEnds ends = {a->mesh(), Layout(1, 1), x->mesh(), to, value.type()};
    EXPECT_EQ(ErrorOf([&] { Redistribute(ends, value, x); }),
              "Redistribute: the source is f32[4] [a] on mesh (a=2), expected f32[4] [-] on mesh (a=2)");
    EXPECT_EQ(
        ErrorOf([&] { Redistribute(ends, Lay(a, WholeNumbers(DType::kF32, {4}), "[-]").RequiresGrad(), x); }),
        "Redistribute: f32[4] [-] has a history, of which ranks outside of mesh (a=2) do not know: detach "
        "it, or use BringTo");
    EXPECT_EQ(ErrorOf([&] { Redistribute(ends, DTensor(), x); }),
              absl::StrCat("Redistribute: rank ", world.rank(), " has no source but is in mesh (a=2)"));
    EXPECT_EQ(ErrorOf([&] { Redistribute(ends, Lay(a, WholeNumbers(DType::kF32, {4}), "[-]"), nullptr); }),
              absl::StrCat("Redistribute: rank ", world.rank(), " has no target but is in mesh (x=2)"));
    EXPECT_EQ(ErrorOf([&] { PlanMeshTransfer(a->mesh(), to.WithPartial(0), x->mesh(), to, {4}); }),
              "a transfer between meshes moves whole values, not the terms of [-] P{a}; reduce them first");
  });
}

}  // namespace
}  // namespace weft
