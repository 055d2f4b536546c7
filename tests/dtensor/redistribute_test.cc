#include "dtensor/redistribute.h"

#include <algorithm>
#include <random>

#include "dtensor/redistribution_cache.h"
#include "dtensor/redistribution_executor.h"
#include "gtest/gtest.h"
#include "mesh/redistribution_bytes.h"
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
  std::vector<int64_t> peak = {};    // bytes that each rank held at most, its source included
};

std::vector<Case> AllPairs(const std::vector<Layout>& layouts) {
  std::vector<Case> cases;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) cases.push_back({from, to});
  }
  return cases;
}

Redistribution PlanOf(const Case& c, const Tensor& full, const DeviceMesh& mesh, PlanObjective objective) {
  return PlanRedistribution(c.from, c.to, full.shape(), full.dtype(), mesh, CostModel(mesh),
                            {.objective = objective});
}

// Runs the cases on one world of thread ranks, from sources that the executor must leave as they are.
void RunCases(const DeviceMesh& mesh, const Tensor& full, bool column_major, PlanObjective objective,
              std::vector<Case>& cases) {
  const int num_ranks = static_cast<int>(mesh.num_ranks());
  for (Case& c : cases) {
    c.results.resize(num_ranks);
    c.bytes.resize(num_ranks);
    c.peak.resize(num_ranks);
  }
  RunRanks(num_ranks, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, mesh);
    for (Case& c : cases) {
      const Tensor piece = PieceOf(full, c.from, mesh, world.rank());
      const Tensor source = column_major ? ColumnMajor(piece) : CloneTensor(piece, world.allocator());
      world.ledger().Clear();
      world.allocator()->ResetPeak();
      const AllocatorStats before = world.allocator()->stats();
      const TensorType type = {full.dtype(), full.shape()};
      const Tensor result = objective == PlanObjective::kTime
                                ? RedistributeLocal(*context, source, type, c.from, c.to)
                                : RunRedistribution(*context, source,
                                                    Lower(PlanOf(c, full, mesh, objective), full.shape(),
                                                          mesh, context->coordinate()));
      const AllocatorStats after = world.allocator()->stats();
      // Less what rounding up may have added to each allocation.
      c.peak[world.rank()] = source.num_bytes() + after.peak_bytes - before.live_bytes -
                             kAllocationGranule * (after.num_allocations - before.num_allocations);
      c.bytes[world.rank()] = world.ledger().num_bytes();
      EXPECT_TRUE(SameBits(source, piece)) << "the source of " << c.from << " to " << c.to << " has changed";
      // A copy: `result` may be a view of `source`, or be read by peers.
      c.results[world.rank()] = CloneTensor(result, world.allocator());
    }
  });
}

// Every rank holds its slice of the whole, or terms that reduce to it; the ledger holds what the plan says,
// and no rank held more than it says.
::testing::AssertionResult Check(const Case& c, const DeviceMesh& mesh, const Tensor& full,
                                 bool is_contiguous, PlanObjective objective) {
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
  const Redistribution plan = PlanOf(c, full, mesh, objective);
  const int64_t planned = TotalBytes(plan, full.shape(), full.dtype(), mesh);
  if (bytes != planned) {
    return ::testing::AssertionFailure() << what << ": the ledgers hold " << bytes << " bytes, planned "
                                         << planned << ": " << plan.ToString(mesh);
  }
  const int64_t planned_peak = PeakBytes(plan, full.shape(), full.dtype(), mesh);
  const int64_t peak = *std::max_element(c.peak.begin(), c.peak.end());
  if (is_contiguous && peak > planned_peak) {
    return ::testing::AssertionFailure()
           << what << ": " << peak << " bytes held, planned " << planned_peak << ": " << plan.ToString(mesh);
  }
  return ::testing::AssertionSuccess();
}

void CheckAll(absl::string_view mesh_text, const Tensor& full, std::vector<Case> cases,
              bool column_major = false, PlanObjective objective = PlanObjective::kTime) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunCases(mesh, full, column_major, objective, cases);
  for (const Case& c : cases) ASSERT_TRUE(Check(c, mesh, full, !column_major, objective));
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

TEST(RedistributeTest, EveryPairAndEveryOrderOnThreeAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2,c=2");
  const std::vector<Layout> layouts = AllLayouts(mesh, /*ndim=*/2, {ReduceOp::kSum});
  ASSERT_EQ(layouts.size(), 92u);
  CheckAll("a=2,b=2,c=2", WholeNumbers(DType::kF32, kUneven), AllPairs(layouts));
}

std::vector<Case> RandomPairs(const DeviceMesh& mesh, int ndim, int count) {
  std::mt19937_64 random(7);
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    const Layout from = RandomLayout(mesh, ndim, random, /*partial=*/true);
    cases.push_back({from, RandomLayout(mesh, ndim, random, /*partial=*/true)});
  }
  return cases;
}

TEST(RedistributeTest, SampleOfPairsOnThreeAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2,c=2");
  for (const Shape& shape : {Shape{8, 4}, Shape{1, 2}, Shape{3, 0}, Shape{3, 2, 5}, Shape{16, 8, 24}}) {
    CheckAll("a=2,b=2,c=2", WholeNumbers(DType::kF32, shape), RandomPairs(mesh, shape.ndim(), 200));
  }
}

// The plans for large tensors, where bytes count for more than messages: permutes, regions sent point to
// point, reductions that replicas share.
TEST(RedistributeTest, PlansOfFewestBytes) {
  const auto check = [](const char* mesh, const Shape& shape, const std::vector<Case>& cases) {
    CheckAll(mesh, WholeNumbers(DType::kF32, shape), cases, /*column_major=*/false, PlanObjective::kBytes);
  };
  const std::vector<Layout> on_two = AllLayouts(DeviceMesh::Parse("a=2,b=2"), 2, {ReduceOp::kSum});
  for (const Shape& shape : {kEven, kUneven, kTiny, kEmpty}) check("a=2,b=2", shape, AllPairs(on_two));
  for (const char* mesh : {"a=2,b=2,c=2", "a=4,b=2", "a=3,b=2"}) {
    for (const Shape& shape : {Shape{8, 24}, kUneven, Shape{3, 2, 5}}) {
      check(mesh, shape, RandomPairs(DeviceMesh::Parse(mesh), shape.ndim(), 200));
    }
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

TEST(RedistributeTest, AViewNeverKeepsALargerBuffer) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Layout from = Layout::Parse("[a, -]", context->mesh()), whole = Layout(2, 1);
    const Layout to = Layout::Parse("[-, a]", context->mesh());
    const Tensor full = WholeNumbers(DType::kF32, {64, 64});
    const Redistribution gather_and_slice{from,
                                          to,
                                          {{.kind = StepKind::kAllGather, .axes = {0}, .result = whole},
                                           {.kind = StepKind::kSlice, .axes = {0}, .result = to}}};
    const Tensor source = PieceOf(full, from, context->mesh(), context->world().rank());
    const int64_t before = context->allocator()->stats().live_bytes;
    const Tensor result = RunRedistribution(
        *context, source, Lower(gather_and_slice, full.shape(), context->mesh(), context->coordinate()));
    EXPECT_TRUE(SameBits(result, PieceOf(full, to, context->mesh(), context->world().rank())));
    EXPECT_LE(context->allocator()->stats().live_bytes - before, 64 * 32 * 4);
  });
}

TEST(RedistributeTest, PlansAreKeptByLayoutsAndType) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const RedistributionCache& cache = context->redistribution_cache();
    const auto redistribute = [&](const Shape& shape, absl::string_view from_text,
                                  absl::string_view to_text) {
      const Layout from = Layout::Parse(from_text, context->mesh());
      const Tensor full = WholeNumbers(DType::kF32, shape);
      RedistributeLocal(*context, PieceOf(full, from, context->mesh(), context->world().rank()),
                        {full.dtype(), shape}, from, Layout::Parse(to_text, context->mesh()));
    };
    redistribute({4, 4}, "[a, b]", "[b, a]");
    redistribute({4, 4}, "[a, b]", "[b, a]");
    EXPECT_EQ(cache.stats(), (CacheStats{.hits = 1, .misses = 1}));
    redistribute({4, 4}, "[a, b]", "[a, b]");  // nothing to plan
    EXPECT_EQ(cache.stats(), (CacheStats{.hits = 1, .misses = 1}));
    redistribute({4, 4}, "[b, a]", "[a, b]");
    redistribute({5, 4}, "[a, b]", "[b, a]");
    EXPECT_EQ(cache.stats(), (CacheStats{.hits = 1, .misses = 3}));
    EXPECT_EQ(cache.size(), 3);
  });
}

TEST(RedistributionCacheTest, IsBounded) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2");
  RedistributionCache cache(/*capacity=*/4);
  const Layout from(1, 1), to = from.WithShard(0, 0);
  for (int64_t extent = 0; extent < 100; ++extent) {
    const TensorType type = {DType::kF32, {extent}};
    EXPECT_EQ(cache.Find(from, to, type), nullptr);
    const LoweredRedistribution* plan = cache.Insert(from, to, type, {});
    EXPECT_EQ(cache.Find(from, to, type), plan);
    EXPECT_LE(cache.size(), 4);
  }
  EXPECT_EQ(cache.stats().hits, 100);
  EXPECT_EQ(cache.stats().misses, 100);
  EXPECT_EQ(cache.stats().evictions, 100 - cache.size());
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
