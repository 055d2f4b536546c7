#include "dtensor/redistribution/redistribute.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "dtensor/context/redistribution_cache.h"
#include "dtensor/functions/creation.h"
#include "dtensor/redistribution/executor.h"
#include "gtest/gtest.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/planner.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/redistribute_cases.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

const Shape kEven = {4, 6};
const Shape kUneven = {5, 3};
const Shape kTiny = {1, 2};
const Shape kEmpty = {0, 3};

TEST(RedistributeTest, EveryPairOnOneAxis) {
  for (const char* mesh : {"a=2", "a=4", "a=3"}) {
    for (const Shape& shape : {kEven, kUneven, kTiny, kEmpty, Shape{2, 3, 5}, Shape{7}, Shape{}}) {
      const std::vector<Layout> layouts = AllLayouts(DeviceMesh::Parse(mesh), shape.ndim(), {ReduceOp::kSum});
      CheckRedistributions(mesh, WholeNumbers(DType::kF32, shape), AllPairs(layouts));
    }
  }
}

TEST(RedistributeTest, EveryPairAndEveryOrderOnTwoAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  const std::vector<Layout> layouts = AllLayouts(mesh, /*ndim=*/2, {ReduceOp::kSum});
  ASSERT_EQ(layouts.size(), 18u);  // 4 * 4, and both orders where both axes split one dim
  for (const Shape& shape : {kEven, kUneven, kTiny, kEmpty}) {
    CheckRedistributions("a=2,b=2", WholeNumbers(DType::kF32, shape), AllPairs(layouts));
  }
}

TEST(RedistributeTest, UnequalAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=3,b=2");
  CheckRedistributions("a=3,b=2", WholeNumbers(DType::kF32, kUneven),
                       AllPairs(AllLayouts(mesh, 2, {ReduceOp::kSum})));
}

TEST(RedistributeTest, AxesOfSizeOne) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=1,b=2");
  CheckRedistributions("a=1,b=2", WholeNumbers(DType::kF32, kUneven),
                       AllPairs(AllLayouts(mesh, 2, {ReduceOp::kSum})));
}

TEST(RedistributeTest, AnyStridesOfTheSource) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  const std::vector<Layout> layouts = AllLayouts(mesh, /*ndim=*/2, {ReduceOp::kSum});
  for (const Shape& shape : {kEven, kUneven}) {
    CheckRedistributions("a=2,b=2", WholeNumbers(DType::kF32, shape), AllPairs(layouts),
                         /*column_major=*/true);
  }
}

std::vector<RedistributeCase> RandomPairs(const DeviceMesh& mesh, int ndim, int count) {
  std::mt19937_64 random(7);
  std::vector<RedistributeCase> cases;
  for (int i = 0; i < count; ++i) {
    const Layout from = RandomLayout(mesh, ndim, random, /*partial=*/true);
    cases.push_back({from, RandomLayout(mesh, ndim, random, /*partial=*/true)});
  }
  return cases;
}

TEST(RedistributeTest, SampleOfPairsOnThreeAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2,c=2");
  for (const Shape& shape : {Shape{8, 4}, Shape{1, 2}, Shape{3, 0}, Shape{3, 2, 5}, Shape{16, 8, 24}}) {
    CheckRedistributions("a=2,b=2,c=2", WholeNumbers(DType::kF32, shape),
                         RandomPairs(mesh, shape.ndim(), 200));
  }
}

// The plans for large tensors, where bytes count for more than messages: permutes, regions sent point to
// point, reductions that replicas share.
TEST(RedistributeTest, PlansOfFewestBytes) {
  const auto check = [](const char* mesh, const Shape& shape, const std::vector<RedistributeCase>& cases) {
    CheckRedistributions(mesh, WholeNumbers(DType::kF32, shape), cases, /*column_major=*/false,
                         PlanObjective::kBytes);
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
      CheckRedistributions(mesh, WholeNumbers(dtype, kUneven), AllPairs(layouts));
    }
  }
}

TEST(RedistributeTest, EveryPartialKind) {
  for (ReduceOp op : kAllReduceOps) {
    for (const char* mesh : {"a=4", "a=2,b=2"}) {
      const std::vector<Layout> layouts = AllLayouts(DeviceMesh::Parse(mesh), 2, {op});
      CheckRedistributions(mesh, WholeNumbers(DType::kF32, kUneven), AllPairs(layouts));
    }
  }
}

TEST(RedistributeTest, FromOneKindToAnother) {
  const std::vector<ReduceOp> kinds(std::begin(kAllReduceOps), std::end(kAllReduceOps));
  CheckRedistributions("a=2", WholeNumbers(DType::kF32, kUneven),
                       AllPairs(AllLayouts(DeviceMesh::Parse("a=2"), 2, kinds)));
  // Sum and average in one tensor.
  const std::vector<Layout> mixed =
      AllLayouts(DeviceMesh::Parse("a=2,b=2"), 1, {ReduceOp::kSum, ReduceOp::kAvg});
  CheckRedistributions("a=2,b=2", WholeNumbers(DType::kF32, Shape{5}), AllPairs(mixed));
}

// Every element comes back as it was, whatever its dtype makes of a sum of them.
TEST(RedistributeTest, AnAverageOfEqualTermsIsTheValue) {
  struct Case {
    DType dtype;
    double value;
    int num_ranks;
  };
  for (const Case& c :
       {Case{DType::kBool, 1, 2}, Case{DType::kU8, 200, 2}, Case{DType::kI32, 1 << 30, 4},
        Case{DType::kF16, 40000, 2}, Case{DType::kBF16, 212, 8}, Case{DType::kF32, 1.4869053, 3},
        Case{DType::kF32, 2e38, 2}, Case{DType::kF64, 1e308, 2}, Case{DType::kI64, 0x1p62, 2}}) {
    OnMesh(absl::StrCat("a=", c.num_ranks), [&](const IntrusivePtr<MeshContext>& context) {
      const DTensor x = Full(context, c.dtype, {3}, c.value);
      const DTensor terms = x.Redistribute(Layout(1, 1).WithPartial(0, ReduceOp::kAvg));
      EXPECT_TRUE(SameBits(terms.Redistribute(Layout(1, 1)).ToLocal(), x.ToLocal()))
          << DTypeName(c.dtype) << " " << c.value << " on " << c.num_ranks;
    });
  }
}

// The terms of the other ranks are what changes no value, -0.0 included.
TEST(RedistributeTest, TermsOfASumAddUpToTheBitsOfTheValue) {
  for (DType dtype :
       {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64, DType::kBool}) {
    OnMesh("a=3", [&](const IntrusivePtr<MeshContext>& context) {
      const DTensor x = Lay(context, FromDoubles(dtype, {4}, {-0.0, 0, 1, 3}), "[-]");
      const DTensor terms = x.Redistribute(Layout(1, 1).WithPartial(0));
      EXPECT_TRUE(SameBits(terms.FullTensor(), x.ToLocal())) << dtype;
      EXPECT_TRUE(SameBits(terms.Redistribute(Layout(1, 1).WithShard(0, 0)).FullTensor(), x.ToLocal()))
          << dtype;
    });
  }
}

// 1 / 3 of three terms is not exact in binary; the value must still be.
TEST(RedistributeTest, AverageOverThreeOfAWholeValue) {
  CheckRedistributions("a=3", WholeNumbers(DType::kF32, kUneven),
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
    const std::shared_ptr<const LoweredRedistribution> plan = cache.Insert(from, to, type, {});
    EXPECT_EQ(cache.Find(from, to, type), plan);
    EXPECT_LE(cache.size(), 4);
  }
  EXPECT_EQ(cache.stats().hits, 100);
  EXPECT_EQ(cache.stats().misses, 100);
  EXPECT_EQ(cache.stats().evictions, 100 - cache.size());
}

TEST(RedistributionCacheTest, PlansInUseStayUnderVaryingShapes) {
  RedistributionCache cache(/*capacity=*/4);
  const Layout from(1, 1), to = from.WithShard(0, 0);
  const TensorType weight = {DType::kF32, {1000}};
  cache.Insert(from, to, weight, {});
  for (int64_t length = 0; length < 100; ++length) {
    ASSERT_NE(cache.Find(from, to, weight), nullptr) << length;
    cache.Insert(from, to, {DType::kF32, {length}}, {});
  }
}

// Sizes past the 512 bytes that travel inside a posting, and past the kernels' blocks.
TEST(RedistributeTest, LargerThanAMessage) {
  for (const char* mesh : {"a=2", "a=2,b=2"}) {
    CheckRedistributions(mesh, WholeNumbers(DType::kF32, {67, 131}),
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
  EXPECT_EQ(layout.PlacedAlong(0, Shard(0)), layout);
  EXPECT_EQ(layout.PlacedAlong(0, Shard(-2)), layout);
  EXPECT_EQ(layout.PlacedAlong(0, Shard(1)).ToString(mesh), "[b, a]");
  EXPECT_EQ(layout.PlacedAlong(1, Partial()).ToString(mesh), "[a, -] P{b}");
}

}  // namespace
}  // namespace weft
