#include "dtensor/redistribute.h"

#include <random>

#include "gtest/gtest.h"
#include "mesh/redistribution_planner.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// One redistribution to run, and what every rank made of it.
struct Case {
  Layout from;
  Layout to;
  std::vector<Tensor> results = {};  // by rank
  std::vector<int64_t> bytes = {};   // that each rank's ledger gained
};

std::vector<Case> AllPairs(const std::vector<Layout>& layouts) {
  std::vector<Case> cases;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) cases.push_back({from, to});
  }
  return cases;
}

// Runs the cases on one world of thread ranks, from sources that the executor must leave as they are.
void RunCases(const DeviceMesh& mesh, const Tensor& full, bool column_major, std::vector<Case>& cases) {
  const int num_ranks = static_cast<int>(mesh.num_ranks());
  for (Case& c : cases) {
    c.results.resize(num_ranks);
    c.bytes.resize(num_ranks);
  }
  RunRanks(num_ranks, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, mesh);
    for (Case& c : cases) {
      const Tensor piece = PieceOf(full, c.from, mesh, world.rank());
      const Tensor source = column_major ? ColumnMajor(piece) : CloneTensor(piece, world.allocator());
      world.ledger().Clear();
      const TensorType type = {full.dtype(), full.shape()};
      const Tensor result = RedistributeLocal(*context, source, type, c.from, c.to);
      c.bytes[world.rank()] = world.ledger().num_bytes();
      EXPECT_TRUE(SameBits(source, piece)) << "the source of " << c.from << " to " << c.to << " has changed";
      // A copy: `result` may be a view of `source`, or be read by peers.
      c.results[world.rank()] = CloneTensor(result, world.allocator());
    }
  });
}

// Every rank holds its slice of the whole, or terms that reduce to it; the ledger holds what the plan says.
::testing::AssertionResult Check(const Case& c, const DeviceMesh& mesh, const Tensor& full) {
  const std::string what =
      absl::StrCat(full.TypeString(), " ", c.from.ToString(mesh), " to ", c.to.ToString(mesh));
  Layout whole = c.to;  // the same pieces, reduced
  for (int axis : c.to.PartialAxes()) whole = whole.WithReplicate(axis);
  for (int rank : mesh.ranks()) {
    std::vector<Tensor> terms;
    for (int member : mesh.GroupOf(rank, c.to.PartialAxes())) terms.push_back(c.results[member]);
    const auto same = SameBits(ReduceTerms(terms, c.to, mesh), PieceOf(full, whole, mesh, rank));
    if (!same) return ::testing::AssertionFailure() << what << ", rank " << rank << ": " << same.message();
  }
  int64_t bytes = 0;
  for (int64_t rank_bytes : c.bytes) bytes += rank_bytes;
  const int64_t planned =
      TotalBytes(PlanRedistribution(c.from, c.to, mesh), full.shape(), full.dtype(), mesh);
  if (bytes == planned) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << what << ": the ledgers hold " << bytes << " bytes, planned " << planned;
}

void CheckAll(absl::string_view mesh_text, const Tensor& full, std::vector<Case> cases,
              bool column_major = false) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunCases(mesh, full, column_major, cases);
  for (const Case& c : cases) ASSERT_TRUE(Check(c, mesh, full));
}

const Shape kEven = {4, 6};
const Shape kUneven = {5, 3};
const Shape kTiny = {1, 2};
const Shape kEmpty = {0, 3};

TEST(RedistributeTest, EveryPairOnOneAxis) {
  for (const char* mesh : {"a=2", "a=4", "a=3"}) {
    for (const Shape& shape : {kEven, kUneven, kTiny, kEmpty, Shape{2, 3, 5}, Shape{7}, Shape{}}) {
      const std::vector<Layout> layouts = AllLayouts(DeviceMesh::Parse(mesh), shape.ndim(), {ReduceOp::kSum});
      CheckAll(mesh, WholeNumbers(DType::kF32, shape), AllPairs(layouts));
    }
  }
}

TEST(RedistributeTest, EveryPairAndEveryOrderOnTwoAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  const std::vector<Layout> layouts = AllLayouts(mesh, /*ndim=*/2, {ReduceOp::kSum});
  ASSERT_EQ(layouts.size(), 18u);  // 4 * 4, and both orders where both axes split one dim
  for (const Shape& shape : {kEven, kUneven, kTiny, kEmpty}) {
    CheckAll("a=2,b=2", WholeNumbers(DType::kF32, shape), AllPairs(layouts));
  }
}

TEST(RedistributeTest, UnequalAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=3,b=2");
  CheckAll("a=3,b=2", WholeNumbers(DType::kF32, kUneven), AllPairs(AllLayouts(mesh, 2, {ReduceOp::kSum})));
}

TEST(RedistributeTest, AxesOfSizeOne) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=1,b=2");
  CheckAll("a=1,b=2", WholeNumbers(DType::kF32, kUneven), AllPairs(AllLayouts(mesh, 2, {ReduceOp::kSum})));
}

TEST(RedistributeTest, AnyStridesOfTheSource) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  const std::vector<Layout> layouts = AllLayouts(mesh, /*ndim=*/2, {ReduceOp::kSum});
  for (const Shape& shape : {kEven, kUneven}) {
    CheckAll("a=2,b=2", WholeNumbers(DType::kF32, shape), AllPairs(layouts), /*column_major=*/true);
  }
}

TEST(RedistributeTest, SampleOfPairsOnThreeAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2,c=2");
  std::mt19937_64 random(7);
  for (const Shape& shape : {Shape{8, 4}, Shape{5, 3}, Shape{3, 2, 5}}) {
    std::vector<Case> cases;
    for (int i = 0; i < 150; ++i) {
      const Layout from = RandomLayout(mesh, shape.ndim(), random, /*partial=*/true);
      cases.push_back({from, RandomLayout(mesh, shape.ndim(), random, /*partial=*/true)});
    }
    CheckAll("a=2,b=2,c=2", WholeNumbers(DType::kF32, shape), cases);
  }
}

TEST(RedistributeTest, OtherDTypes) {
  for (DType dtype : {DType::kF64, DType::kI32, DType::kI64, DType::kBF16, DType::kF16}) {
    for (const char* mesh : {"a=2", "a=2,b=2"}) {
      const std::vector<Layout> layouts = AllLayouts(DeviceMesh::Parse(mesh), 2, {ReduceOp::kSum});
      CheckAll(mesh, WholeNumbers(dtype, kUneven), AllPairs(layouts));
    }
  }
}

TEST(RedistributeTest, EveryPartialKind) {
  for (ReduceOp op : kAllReduceOps) {
    for (const char* mesh : {"a=4", "a=2,b=2"}) {
      const std::vector<Layout> layouts = AllLayouts(DeviceMesh::Parse(mesh), 2, {op});
      CheckAll(mesh, WholeNumbers(DType::kF32, kUneven), AllPairs(layouts));
    }
  }
}

TEST(RedistributeTest, FromOneKindToAnother) {
  const std::vector<ReduceOp> kinds(std::begin(kAllReduceOps), std::end(kAllReduceOps));
  CheckAll("a=2", WholeNumbers(DType::kF32, kUneven),
           AllPairs(AllLayouts(DeviceMesh::Parse("a=2"), 2, kinds)));
  // Sum and average in one tensor.
  const std::vector<Layout> mixed =
      AllLayouts(DeviceMesh::Parse("a=2,b=2"), 1, {ReduceOp::kSum, ReduceOp::kAvg});
  CheckAll("a=2,b=2", WholeNumbers(DType::kF32, Shape{5}), AllPairs(mixed));
}

// 1 / 3 of three terms is not exact in binary; the value must still be.
TEST(RedistributeTest, AverageOverThreeOfAWholeValue) {
  CheckAll("a=3", WholeNumbers(DType::kF32, kUneven),
           AllPairs(AllLayouts(DeviceMesh::Parse("a=3"), 2, {ReduceOp::kAvg})));
}

TEST(RedistributeTest, NothingMovesMeansAView) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor full = WholeNumbers(DType::kF32, {5, 4});
    const auto is_view = [&](absl::string_view from_text, absl::string_view to_text) {
      const Layout from = Layout::Parse(from_text, context->mesh());
      const Layout to = Layout::Parse(to_text, context->mesh());
      const Tensor source = PieceOf(full, from, context->mesh(), context->world().rank());
      const Tensor result = RedistributeLocal(*context, source, {full.dtype(), full.shape()}, from, to);
      return result.buffer() == source.buffer();
    };
    EXPECT_TRUE(is_view("[a, b]", "[a, b]"));
    EXPECT_TRUE(is_view("[-, -]", "[-, b]"));
    EXPECT_TRUE(is_view("[-, -]", "[b.a, -]"));
    EXPECT_TRUE(is_view("[a, -]", "[a.b, -]"));
    EXPECT_TRUE(is_view("[a, -]", "[a, -] P{b:max}"));
    EXPECT_TRUE(is_view("[-, -] P{a}", "[-, b] P{a}"));
    EXPECT_EQ(LedgerText(*context), "");
    EXPECT_FALSE(is_view("[a, -]", "[-, -]"));
  });
}

// Sizes past the 512 bytes that travel inside a posting, and past the kernels' blocks.
TEST(RedistributeTest, LargerThanAMessage) {
  for (const char* mesh : {"a=2", "a=2,b=2"}) {
    CheckAll(mesh, WholeNumbers(DType::kF32, {67, 131}),
             AllPairs(AllLayouts(DeviceMesh::Parse(mesh), 2, {ReduceOp::kSum})));
  }
}

TEST(RedistributeTest, PurposeAndPathAreInTheLedger) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    const int path = state.PathId("blocks.0");
    const Tensor full = WholeNumbers(DType::kF32, {4, 2});
    const PurposeGuard purpose(state, Purpose::kParam);
    const PathGuard guard(state, path);
    const Layout from = Layout::Parse("[dp, -]", context->mesh());
    RedistributeLocal(*context, PieceOf(full, from, context->mesh(), context->world().rank()),
                      {DType::kF32, {4, 2}}, from, Layout(2, 1));
    const std::vector<LedgerEntry> entries = context->world().ledger().entries();
    ASSERT_EQ(entries.size(), 1u);
    EXPECT_EQ(entries[0].kind, CollectiveKind::kAllGather);
    EXPECT_EQ(entries[0].group, "dp");
    EXPECT_EQ(entries[0].tag, (CommTag{static_cast<uint8_t>(Purpose::kParam), path}));
    EXPECT_EQ(state.PathName(entries[0].tag.path_id), "blocks.0");
  });
}

TEST(RedistributeTest, PlacedAlongKeepsANestingThatIsThere) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  const Layout layout = Layout::Parse("[a.b, -]", mesh);
  EXPECT_EQ(PlacedAlong(layout, 0, Shard(0)), layout);
  EXPECT_EQ(PlacedAlong(layout, 0, Shard(-2)), layout);
  EXPECT_EQ(PlacedAlong(layout, 0, Shard(1)).ToString(mesh), "[b, a]");
  EXPECT_EQ(PlacedAlong(layout, 1, Partial()).ToString(mesh), "[a, -] P{b}");
}

}  // namespace
}  // namespace weft
