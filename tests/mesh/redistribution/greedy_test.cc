#include "mesh/redistribution/greedy.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "mesh/redistribution/bytes.h"
#include "runtime/base/error.h"
#include "tests/mesh/all_layouts.h"
#include "tests/mesh/simulated_ranks.h"

namespace weft {
namespace {

// "" if `step` is one that the contract of StepKind allows on `from`, and its result is what it says.
std::string CheckStep(const RedistributionStep& step, const Layout& from) {
  if (step.axes.empty() || (step.axes.size() > 1 && step.kind != StepKind::kAllReduce))
    return "number of axes";
  Layout expected = from;
  for (int axis : step.axes) {
    if (step.kind == StepKind::kAllGather || step.kind == StepKind::kAllToAll) {
      if (!from.IsShard(axis)) return "not a shard";
      if (from.ShardAxes(from.shard_dim(axis)).back() != axis) return "not innermost";
    } else if (step.kind == StepKind::kSlice || step.kind == StepKind::kToPartial) {
      if (!from.IsReplicate(axis)) return "not replicated";
    } else if (!from.IsPartial(axis) || from.partial_op(axis) != step.op) {
      return "not partial of that kind";
    }
    if (step.kind == StepKind::kAllGather || step.kind == StepKind::kAllReduce) {
      expected = expected.WithReplicate(axis);
    } else if (step.kind == StepKind::kToPartial) {
      expected = expected.WithPartial(axis, step.op);
    } else {
      if (!step.result.IsShard(axis)) return "not split";
      expected = expected.WithShard(axis, step.result.shard_dim(axis));
    }
  }
  return step.result == expected ? "" : "result";
}

// "" if the plan keeps the planner's promises, whatever the shape.
std::string CheckPlan(const Redistribution& plan, const Layout& from, const Layout& to) {
  if (plan.from != from || plan.to != to) return "ends";
  if (from == to && !plan.steps.empty()) return "steps between equal layouts";
  absl::flat_hash_set<int> stay;
  for (int dim = 0; dim < from.ndim(); ++dim) {
    const AxisList a = from.ShardAxes(dim), b = to.ShardAxes(dim);
    for (size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i) stay.insert(a[i]);
  }
  Layout state = from;
  bool gathered = false;
  absl::flat_hash_set<ReduceOp> reduced;
  for (const RedistributionStep& step : plan.steps) {
    if (std::string wrong = CheckStep(step, state); !wrong.empty()) return wrong;
    for (int axis : step.axes) {
      if (stay.contains(axis)) return "moved an axis that stays";
      if (from.IsPartial(axis) && from.placement(axis) == to.placement(axis))
        return "reduced a Partial that stays";
    }
    gathered |= step.kind == StepKind::kAllGather;
    if (step.kind == StepKind::kAllReduce) {
      if (gathered) return "all-reduce after a gather";
      if (!reduced.insert(step.op).second) return "two all-reduces of one kind";
    }
    state = step.result;
  }
  return state == to ? "" : "does not arrive";
}

// "" if the plan, run on simulated ranks, passes only through the layouts that it names, keeps the value, and
// lacks as many bytes as predicted.
std::string RunPlan(const Redistribution& plan, const Shape& shape, const DeviceMesh& mesh) {
  SimulatedRanks ranks(mesh, shape, plan.from);
  if (std::string wrong = ranks.Check(plan.from); !wrong.empty()) return "at the start: " + wrong;
  Layout from = plan.from;
  int64_t total = 0;
  for (const RedistributionStep& step : plan.steps) {
    const int64_t bytes = ranks.Run(step) * ItemSize(DType::kF32);
    if (std::string wrong = ranks.Check(step.result); !wrong.empty()) return wrong;
    const int64_t predicted = StepBytes(step, from, {DType::kF32, shape}, mesh);
    if (predicted != bytes) return absl::StrCat("predicted ", predicted, " bytes, lacked ", bytes);
    total += bytes;
    from = step.result;
  }
  const int64_t predicted = TotalBytes(plan, {DType::kF32, shape}, mesh);
  return predicted == total ? "" : absl::StrCat("predicted ", predicted, " bytes in all, lacked ", total);
}

void ExpectPlanWorks(const Layout& from, const Layout& to, const DeviceMesh& mesh,
                     const std::vector<Shape>& shapes) {
  const Redistribution plan = PlanGreedy(from, to, mesh);
  ASSERT_EQ(CheckPlan(plan, from, to), "") << plan.ToString(mesh) << ", for " << to.ToString(mesh);
  for (const Shape& shape : shapes)
    ASSERT_EQ(RunPlan(plan, shape, mesh), "") << shape << " " << plan.ToString(mesh);
}

std::vector<Shape> Shapes(const DeviceMesh& mesh) {
  const int64_t even = mesh.num_ranks();
  return {{even, even}, {5, 3}, {1, 2}, {0, 3}};
}

TEST(RedistributionGreedyTest, EveryPairOverOneAndTwoAxes) {
  for (absl::string_view text : {"", "a=2", "a=4", "a=2,b=2", "a=2,b=3"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    const std::vector<Layout> layouts = AllLayouts(2, mesh.num_axes(), {ReduceOp::kSum});
    ASSERT_EQ(layouts.size(), (std::vector<size_t>{1, 4, 18})[mesh.num_axes()]);
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) ASSERT_NO_FATAL_FAILURE(ExpectPlanWorks(from, to, mesh, Shapes(mesh)));
    }
  }
}

TEST(RedistributionGreedyTest, PairsOverThreeAxes) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2,c=2");
  const std::vector<Layout> layouts = AllLayouts(2, 3, {ReduceOp::kSum});
  ASSERT_EQ(layouts.size(), 92u);
  std::mt19937 draw(3);
  for (int round = 0; round < 1500; ++round) {
    const Layout from = layouts[draw() % layouts.size()];
    const Layout to = layouts[draw() % layouts.size()];
    ASSERT_NO_FATAL_FAILURE(ExpectPlanWorks(from, to, mesh, Shapes(mesh)));
  }
}

// The plan alone, for every pair of every nesting of four axes of different sizes.
TEST(RedistributionGreedyTest, PlansOverFourAxesArrive) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=3,c=1,d=4");
  const std::vector<Layout> layouts = AllLayouts(2, 4, {ReduceOp::kSum});
  ASSERT_GT(layouts.size(), 500u);
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      const Redistribution plan = PlanGreedy(from, to, mesh);
      const std::string wrong = CheckPlan(plan, from, to);
      if (!wrong.empty()) FAIL() << wrong << ": " << plan.ToString(mesh) << ", for " << to.ToString(mesh);
    }
  }
}

TEST(RedistributionGreedyTest, EveryPartialKind) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=3");
  const std::vector<Layout> layouts =
      AllLayouts(1, 2, std::vector<ReduceOp>(std::begin(kAllReduceOps), std::end(kAllReduceOps)));
  // R, S: 2 x 2 and the other nesting; one Partial: 5 kinds x 2 axes x {R, S}; two: 2 x 2 of sum and avg, 3
  // others.
  ASSERT_EQ(layouts.size(), 5u + 20u + 7u);
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      ASSERT_NO_FATAL_FAILURE(ExpectPlanWorks(from, to, mesh, {{7}, {1}}));
    }
  }
}

// Going by way of Replicate is always possible; on even shapes no plan may move more than that.
TEST(RedistributionGreedyTest, NeverWorseThanThroughReplicate) {
  for (absl::string_view text : {"a=2,b=2,c=2", "a=2,b=3,c=4", "a=4,b=1,c=8"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    const std::vector<Layout> layouts = AllLayouts(2, 3, {ReduceOp::kSum});
    const Shape shape = {mesh.num_ranks(), mesh.num_ranks()};
    const auto bytes = [&](const Layout& from, const Layout& to) {
      return TotalBytes(PlanGreedy(from, to, mesh), {DType::kU8, shape}, mesh);
    };
    const Layout whole(2, 3);
    for (const Layout& from : layouts) {
      const int64_t to_whole = bytes(from, whole);
      for (const Layout& to : layouts) {
        ASSERT_LE(bytes(from, to), to_whole) << PlanGreedy(from, to, mesh).ToString(mesh);
      }
    }
  }
}

std::string PlanText(absl::string_view from, absl::string_view to, const DeviceMesh& mesh) {
  return PlanGreedy(Layout::Parse(from, mesh), Layout::Parse(to, mesh), mesh).ToString(mesh);
}

TEST(RedistributionGreedyTest, WellKnownPairs) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=4,tp=2");
  const auto plan = [&](absl::string_view from, absl::string_view to) { return PlanText(from, to, mesh); };
  EXPECT_EQ(plan("[dp]", "[dp]"), "[dp]");
  EXPECT_EQ(plan("[dp]", "[-]"), "[dp] -all_gather(dp)-> [-]");
  EXPECT_EQ(plan("[-]", "[dp]"), "[-] -slice(dp)-> [dp]");
  EXPECT_EQ(plan("[-] P{dp}", "[dp]"), "[-] P{dp} -reduce_scatter(dp)-> [dp]");
  EXPECT_EQ(plan("[-] P{dp}", "[-]"), "[-] P{dp} -all_reduce(dp)-> [-]");
  EXPECT_EQ(plan("[-]", "[-] P{dp}"), "[-] -to_partial(dp)-> [-] P{dp}");
  EXPECT_EQ(plan("[dp, -]", "[-, dp]"), "[dp, -] -all_to_all(dp)-> [-, dp]");
  EXPECT_EQ(plan("[tp.dp]", "[tp]"), "[tp.dp] -all_gather(dp)-> [tp]");
  EXPECT_EQ(plan("[tp]", "[tp.dp]"), "[tp] -slice(dp)-> [tp.dp]");
  EXPECT_EQ(plan("[tp] P{dp}", "[tp.dp]"), "[tp] P{dp} -reduce_scatter(dp)-> [tp.dp]");
  EXPECT_EQ(plan("[-] P{dp,tp}", "[-]"), "[-] P{dp,tp} -all_reduce(dp,tp)-> [-]");
  EXPECT_EQ(plan("[-] P{dp,tp:max}", "[-]"), "[-] P{dp,tp:max} -all_reduce(dp,tp)-> [-]");
  EXPECT_EQ(plan("[-] P{dp:avg,tp:sum}", "[-]"),
            "[-] P{dp:avg,tp:sum} -all_reduce(tp)-> [-] P{dp:avg} -all_reduce(dp)-> [-]");
  EXPECT_EQ(plan("[-] P{dp}", "[-] P{dp:max}"),
            "[-] P{dp} -all_reduce(dp)-> [-] -to_partial(dp)-> [-] P{dp:max}");
  EXPECT_EQ(plan("[dp]", "[-] P{dp}"), "[dp] -all_gather(dp)-> [-] -to_partial(dp)-> [-] P{dp}");
  EXPECT_EQ(plan("[dp] P{tp}", "[-] P{tp}"), "[dp] P{tp} -all_gather(dp)-> [-] P{tp}");
  // HSDP: scatter inside, then reduce the smaller pieces across.
  EXPECT_EQ(plan("[-] P{dp,tp}", "[tp]"),
            "[-] P{dp,tp} -reduce_scatter(tp)-> [tp] P{dp} -all_reduce(dp)-> [tp]");
}

TEST(RedistributionGreedyTest, OrderOfSteps) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=4,tp=2");
  const auto plan = [&](absl::string_view from, absl::string_view to) { return PlanText(from, to, mesh); };
  // Reduce before the gather, slice before either.
  EXPECT_EQ(plan("[tp, -] P{dp}", "[-, -]"),
            "[tp, -] P{dp} -all_reduce(dp)-> [tp, -] -all_gather(tp)-> [-, -]");
  EXPECT_EQ(plan("[tp, -]", "[-, dp]"), "[tp, -] -slice(dp)-> [tp, dp] -all_gather(tp)-> [-, dp]");
  // The slice makes room for the all-to-all.
  EXPECT_EQ(plan("[tp, -]", "[-, dp.tp]"), "[tp, -] -slice(dp)-> [tp, dp] -all_to_all(tp)-> [-, dp.tp]");
  // Two shards change places: the smaller axis is gathered.
  EXPECT_EQ(plan("[dp, tp]", "[tp, dp]"),
            "[dp, tp] -all_gather(tp)-> [dp, -] -all_to_all(dp)-> [-, dp] -slice(tp)-> [tp, dp]");
  // Another nesting needs the whole.
  EXPECT_EQ(plan("[dp.tp]", "[tp.dp]"),
            "[dp.tp] -all_gather(tp)-> [dp] -all_gather(dp)-> [-] -slice(tp)-> [tp] -slice(dp)-> [tp.dp]");
  // A Partial waits for its place behind a gather over 2, and is reduced before one over 4.
  EXPECT_EQ(plan("[tp] P{dp}", "[dp]"), "[tp] P{dp} -all_gather(tp)-> [-] P{dp} -reduce_scatter(dp)-> [dp]");
  EXPECT_EQ(plan("[dp] P{tp}", "[tp]"),
            "[dp] P{tp} -all_reduce(tp)-> [dp] -all_gather(dp)-> [-] -slice(tp)-> [tp]");
  // Where others are all-reduced anyway, joining them is cheaper than waiting.
  const DeviceMesh three = DeviceMesh::Parse("a=2,b=2,c=2");
  EXPECT_EQ(PlanText("[c] P{a,b}", "[a]", three),
            "[c] P{a,b} -all_reduce(a,b)-> [c] -all_gather(c)-> [-] -slice(a)-> [a]");
  // It waits for an all-to-all too.
  EXPECT_EQ(plan("[tp, -] P{dp}", "[dp, tp]"),
            "[tp, -] P{dp} -all_to_all(tp)-> [-, tp] P{dp} -reduce_scatter(dp)-> [dp, tp]");
}

TEST(RedistributionGreedyTest, BytesByHand) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=3");
  const auto bytes = [&](absl::string_view from, absl::string_view to, const TensorType& type) {
    return TotalBytes(PlanGreedy(Layout::Parse(from, mesh), Layout::Parse(to, mesh), mesh), type, mesh);
  };
  // Three groups of two, S = 15 elements: (n-1) S each, twice that to all-reduce.
  EXPECT_EQ(bytes("[a, -]", "[-, -]", {DType::kF32, {5, 3}}), 3 * 1 * 15 * 4);
  EXPECT_EQ(bytes("[-, -] P{a}", "[a, -]", {DType::kF64, {5, 3}}), 3 * 1 * 15 * 8);
  EXPECT_EQ(bytes("[-, -] P{a}", "[-, -]", {DType::kBF16, {5, 3}}), 3 * 2 * 1 * 15 * 2);
  EXPECT_EQ(bytes("[-, -] P{a,b}", "[-, -]", {DType::kU8, {5, 3}}), 2 * 5 * 15);
  // Rows 0-2 | 3-4 to columns 0-1 | 2: the first lacks 2 x 2, the second 3 x 1.
  EXPECT_EQ(bytes("[a, -]", "[-, a]", {DType::kF32, {5, 3}}), 3 * 7 * 4);
  EXPECT_EQ(bytes("[-, -]", "[a, b]", {DType::kF32, {5, 3}}), 0);
  EXPECT_EQ(bytes("[-, -]", "[-, -] P{a}", {DType::kF32, {5, 3}}), 0);
}

TEST(RedistributionGreedyTest, BytesOfALargeMeshAreImmediate) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=1000,tp=100");
  const Shape shape = {1000000, 100};
  const Redistribution plan =
      PlanGreedy(Layout::Parse("[tp.dp, -]", mesh), Layout::Parse("[tp, -]", mesh), mesh);
  // 100 groups of 1000; each gathers 10^6 x 100 / 100 elements.
  EXPECT_EQ(TotalBytes(plan, {DType::kF32, shape}, mesh), int64_t{100} * 999 * 1000000 * 4);
}

TEST(RedistributionGreedyTest, MisuseIsNamed) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  const auto message = [&](const Layout& from, const Layout& to) {
    try {
      PlanGreedy(from, to, mesh);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
      return error.message();
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(message(Layout(1, 1).WithShard(0, 0), Layout(2, 1)),
            "cannot redistribute [dp] to [-, -]: one has 1 dims, the other 2");
  EXPECT_EQ(message(Layout(1, 1), Layout(1, 2)), "layout [-] is for 2 mesh axes, but mesh (dp=2) has 1");
  const RedistributionStep step =
      PlanGreedy(Layout::Parse("[dp]", mesh), Layout::Parse("[-]", mesh), mesh).steps.at(0);
  EXPECT_THROW(StepBytes(step, Layout::Parse("[dp]", mesh), {DType::kF32, {2, 2}}, mesh), Error);
}

}  // namespace
}  // namespace weft
