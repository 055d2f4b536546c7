#include "mesh/redistribution/planner.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "mesh/redistribution/bound.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/greedy.h"
#include "tests/mesh/all_layouts.h"
#include "tests/mesh/simulated_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

// "" if the plan, run on simulated ranks, passes only through the layouts that it names, keeps the value, and
// lacks as many bytes as predicted.
std::string RunPlan(const Redistribution& plan, const Shape& shape, const DeviceMesh& mesh) {
  SimulatedRanks ranks(mesh, shape, plan.from);
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    const int64_t bytes = ranks.Run(step) * ItemSize(DType::kF32);
    if (std::string wrong = ranks.Check(step.result); !wrong.empty()) return wrong;
    const int64_t predicted = StepBytes(step, from, {DType::kF32, shape}, mesh);
    if (predicted != bytes) return absl::StrCat("predicted ", predicted, " bytes, lacked ", bytes);
    from = step.result;
  }
  return from == plan.to ? "" : "does not arrive";
}

// "" if the plan keeps the planner's promises against the greedy one.
std::string CheckAgainstGreedy(const Redistribution& plan, const Shape& shape, const DeviceMesh& mesh,
                               const CostModel& cost_model) {
  const Redistribution greedy = PlanGreedy(plan.from, plan.to, mesh);
  const int64_t bytes = WorstRankBytes(plan, {DType::kF32, shape}, mesh);
  const int64_t greedy_bytes = WorstRankBytes(greedy, {DType::kF32, shape}, mesh);
  if (bytes > greedy_bytes) return absl::StrCat(bytes, " bytes, greedy ", greedy_bytes);
  if (bytes < RedistributionBound(plan.from, plan.to, {DType::kF32, shape}, mesh)) return "below the bound";
  const double us = cost_model.Microseconds(plan, {DType::kF32, shape});
  const double greedy_us = cost_model.Microseconds(greedy, {DType::kF32, shape});
  if (us > greedy_us * (1 + 1e-9)) return absl::StrCat(us, " us, greedy ", greedy_us);
  bool gathered = false;
  for (const RedistributionStep& step : plan.steps) {
    gathered |= step.kind == StepKind::kAllGather && plan.steps.size() > 1;
    const bool reduces = step.kind == StepKind::kAllReduce || step.kind == StepKind::kReduceScatter;
    if (reduces && gathered && plan != greedy) return "reduces after a gather";
  }
  return "";
}

void ExpectPlansWork(absl::string_view mesh_text, int ndim, const std::vector<ReduceOp>& ops,
                     const std::vector<Shape>& shapes, int rounds) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  const CostModel cost_model(mesh);
  const std::vector<Layout> layouts = AllLayouts(ndim, mesh.num_axes(), ops);
  std::mt19937 draw(3);
  const size_t num_pairs = layouts.size() * layouts.size();
  const bool all = num_pairs <= static_cast<size_t>(rounds);
  for (size_t round = 0; round < (all ? num_pairs : static_cast<size_t>(rounds)); ++round) {
    const Layout& from = layouts[all ? round / layouts.size() : draw() % layouts.size()];
    const Layout& to = layouts[all ? round % layouts.size() : draw() % layouts.size()];
    const Shape& shape = shapes[draw() % shapes.size()];
    for (PlanObjective objective : {PlanObjective::kTime, PlanObjective::kBytes}) {
      const Redistribution plan =
          PlanRedistribution(from, to, {DType::kF32, shape}, mesh, cost_model, {.objective = objective});
      ASSERT_EQ(RunPlan(plan, shape, mesh), "") << shape << " " << plan.ToString(mesh);
      if (objective == PlanObjective::kTime) {
        ASSERT_EQ(CheckAgainstGreedy(plan, shape, mesh, cost_model), "")
            << shape << " " << plan.ToString(mesh);
      }
    }
  }
}

TEST(RedistributionPlannerTest, EveryPairOverOneAndTwoAxes) {
  for (absl::string_view mesh : {"", "a=2", "a=4", "a=2,b=2", "a=2,b=3", "a=1,b=2"}) {
    ExpectPlansWork(mesh, 2, {ReduceOp::kSum}, {{12, 12}, {5, 3}, {1, 2}, {0, 3}}, 400);
  }
}

TEST(RedistributionPlannerTest, PairsOverMoreAxes) {
  ExpectPlansWork("a=2,b=2,c=2", 2, {ReduceOp::kSum}, {{8, 8}, {5, 3}, {1, 2}}, 500);
  ExpectPlansWork("a=2,b=3,c=2", 2, {ReduceOp::kSum}, {{12, 12}, {7, 4}}, 200);
  ExpectPlansWork("a=2,b=1,c=2,d=2", 2, {ReduceOp::kSum}, {{8, 8}, {5, 3}}, 200);
}

TEST(RedistributionPlannerTest, EveryPartialKind) {
  const std::vector<ReduceOp> ops(std::begin(kAllReduceOps), std::end(kAllReduceOps));
  ExpectPlansWork("a=2,b=3", 1, ops, {{6}, {7}, {1}}, 2000);
}

// With costs that differ by axis, and for tensors of every size: never slower, never more bytes than greedy.
TEST(RedistributionPlannerTest, NeverWorseThanGreedy) {
  std::mt19937 draw(4);
  for (absl::string_view text : {"a=2,b=2,c=2", "a=4,b=2", "a=2,b=3,c=2,d=4", "a=8,b=1,c=16"}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    Machine machine;
    for (int i = 0; i < mesh.num_axes(); ++i) machine.axes[mesh.axis_name(i)].beta /= 1 + 3 * i;
    const CostModel uniform(mesh), slow_outside(mesh, machine);
    const std::vector<Layout> layouts = AllLayouts(2, mesh.num_axes(), {ReduceOp::kSum});
    for (const Shape& shape : {Shape{4096, 4096}, Shape{100, 36}, Shape{3, 2}}) {
      for (int round = 0; round < 1500; ++round) {
        const Layout& from = layouts[draw() % layouts.size()];
        const Layout& to = layouts[draw() % layouts.size()];
        for (const CostModel* cost_model : {&uniform, &slow_outside}) {
          const Redistribution plan = PlanRedistribution(from, to, {DType::kF32, shape}, mesh, *cost_model);
          ASSERT_EQ(CheckAgainstGreedy(plan, shape, mesh, *cost_model), "")
              << shape << " " << plan.ToString(mesh);
        }
      }
    }
  }
}

// 64 MiB under the uniform cost model: no pair without Partial moves more than 1.1 times what the worst rank
// lacks. There are no exceptions on meshes of up to 8 ranks.
TEST(RedistributionPlannerTest, CloseToTheBound) {
  for (const DeviceMesh& mesh : AllMeshes(3, 8)) {
    const CostModel cost_model(mesh);
    for (const Shape& shape : {Shape{256, 256, 256}, Shape{4096, 4096}}) {
      const std::vector<Layout> layouts = AllLayouts(shape.ndim(), mesh.num_axes(), {});
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) {
          const Redistribution plan = PlanRedistribution(from, to, {DType::kF32, shape}, mesh, cost_model);
          const int64_t bound = RedistributionBound(from, to, {DType::kF32, shape}, mesh);
          ASSERT_LE(10 * WorstRankBytes(plan, {DType::kF32, shape}, mesh), 11 * bound) << plan.ToString(mesh);
        }
      }
    }
  }
}

class KnownPlansTest : public testing::Test {
 protected:
  std::string Plan(absl::string_view from, absl::string_view to, const Shape& shape = {4096, 4096}) const {
    return PlanRedistribution(Layout::Parse(from, mesh_), Layout::Parse(to, mesh_), {DType::kF32, shape},
                              mesh_, cost_model_)
        .ToString(mesh_);
  }

  const DeviceMesh mesh_ = DeviceMesh::Parse("a=4,b=4");
  const CostModel cost_model_{mesh_};
};

TEST_F(KnownPlansTest, OneStepIsEnough) {
  EXPECT_EQ(Plan("[a, -]", "[a, -]"), "[a, -]");
  EXPECT_EQ(Plan("[a, -]", "[-, -]"), "[a, -] -all_gather(a)-> [-, -]");
  EXPECT_EQ(Plan("[-, -]", "[b.a, -]"), "[-, -] -slice(a,b)-> [b.a, -]");
  EXPECT_EQ(Plan("[a, b]", "[-, -]"), "[a, b] -all_gather(a,b)-> [-, -]");
  EXPECT_EQ(Plan("[a, b]", "[b, a]"), "[a, b] -permute(a,b)-> [b, a]");
  EXPECT_EQ(Plan("[a.b, -]", "[b.a, -]"), "[a.b, -] -permute(a,b)-> [b.a, -]");
  EXPECT_EQ(Plan("[a.b, -]", "[b, -]"), "[a.b, -] -send_regions(a,b)-> [b, -]");
  EXPECT_EQ(Plan("[-, -] P{a,b}", "[-, -]"), "[-, -] P{a,b} -all_reduce(a,b)-> [-, -]");
  EXPECT_EQ(Plan("[-, -] P{a,b}", "[a, b]"), "[-, -] P{a,b} -reduce_scatter(a,b)-> [a, b]");
  EXPECT_EQ(Plan("[-, -] P{a,b}", "[b.a, -]"), "[-, -] P{a,b} -reduce_scatter(a,b)-> [b.a, -]");
  EXPECT_EQ(Plan("[-, -]", "[-, -] P{a,b}"), "[-, -] -to_partial(a,b)-> [-, -] P{a,b}");
}

TEST_F(KnownPlansTest, ReducesBeforeItGathers) {
  EXPECT_EQ(Plan("[-, -] P{a,b}", "[-, b]"),
            "[-, -] P{a,b} -reduce_scatter(a,b)-> [-, b.a] -all_gather(a)-> [-, b]");
  // The replicas along b share the work, and then bring their parts together.
  EXPECT_EQ(Plan("[-, -] P{a}", "[a.b, -]"),
            "[-, -] P{a} -slice(b)-> [-, b] P{a} -reduce_scatter(a)-> [a, b] -all_to_all(b)-> [a.b, -]");
}

// Few bytes: fewer messages count for more.
TEST_F(KnownPlansTest, SmallTensorsTakeFewMessages) {
  EXPECT_EQ(Plan("[a.b, -]", "[-, a.b]"), "[a.b, -] -all_to_all(a,b)-> [-, a.b]");
  EXPECT_EQ(Plan("[a.b, -]", "[-, b]", {16, 16}), "[a.b, -] -all_to_all(b)-> [a, b] -all_gather(a)-> [-, b]");
}

// Between slow nodes (a), only what is already reduced within them.
TEST_F(KnownPlansTest, HierarchicalReductionWhereAxesDiffer) {
  const CostModel cost_model(mesh_, {.axes = {{"a", {.beta = 1e-9}}, {"b", {.beta = 1e-11}}}});
  EXPECT_EQ(PlanRedistribution(Layout::Parse("[-, -] P{a,b}", mesh_), Layout::Parse("[b, -]", mesh_),
                               {DType::kF32, {4096, 4096}}, mesh_, cost_model)
                .ToString(mesh_),
            "[-, -] P{a,b} -reduce_scatter(b)-> [b, -] P{a} -all_reduce(a)-> [b, -]");
  EXPECT_EQ(PlanRedistribution(Layout::Parse("[-, -] P{a,b}", mesh_), Layout(2, 2),
                               {DType::kF32, {4096, 4096}}, mesh_, cost_model)
                .ToString(mesh_),
            "[-, -] P{a,b} -reduce_scatter(b)-> [b, -] P{a} -all_reduce(a)-> [b, -] -all_gather(b)-> [-, -]");
}

// The axes that a slice fixes change no plan, whatever they would cost.
TEST_F(KnownPlansTest, ASliceIsPlannedAsAMeshOfItsRemainingAxes) {
  const DeviceMesh root = DeviceMesh::Parse("p=2, q=3, " + mesh_.ToString());
  const DeviceMesh slice = root.Slice({{"p", 1}, {"q", 2}});
  Machine machine = {.axes = {{"a", {.beta = 1e-9}}, {"b", {.beta = 1e-11}}}};
  const CostModel own(mesh_, machine);
  machine.axes["p"] = {.alpha = 1, .beta = 1};
  const CostModel of_slice(slice, machine);
  const std::vector<Layout> layouts = AllLayouts(2, mesh_.num_axes(), {ReduceOp::kSum});
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      const auto there = [&](const Layout& layout) { return Layout::Parse(layout.ToString(mesh_), slice); };
      const TensorType type = {DType::kF32, {4096, 4095}};
      EXPECT_EQ(PlanRedistribution(there(from), there(to), type, slice, of_slice).ToString(slice),
                PlanRedistribution(from, to, type, mesh_, own).ToString(mesh_));
    }
  }
}

TEST_F(KnownPlansTest, AxesOfOneRankMoveNothing) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=1,b=2");
  const auto plan = [&](absl::string_view from, absl::string_view to) {
    return PlanRedistribution(Layout::Parse(from, mesh), Layout::Parse(to, mesh), {DType::kF32, {4, 4}}, mesh,
                              CostModel(mesh))
        .ToString(mesh);
  };
  EXPECT_EQ(plan("[a, -]", "[-, a]"), "[a, -] -slice(a)-> [-, a]");
  EXPECT_EQ(plan("[-, -] P{a}", "[-, -]"), "[-, -] P{a} -slice(a)-> [-, -]");
}

TEST(MemoryCapTest, TheCapChoosesAmongPlans) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=4,b=4");
  const CostModel cost_model(mesh);
  const Shape shape = {64, 64};
  const auto plan = [&](absl::string_view from, absl::string_view to, std::optional<int64_t> cap) {
    return PlanRedistribution(Layout::Parse(from, mesh), Layout::Parse(to, mesh), {DType::kF32, shape}, mesh,
                              cost_model, {.memory_cap = cap});
  };
  // To the byte: a plan's own peak is enough, and one less is not enough for that plan.
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"[a, b]", "[b, a]"},
                                                                                 {"[-, -] P{a}", "[-, -]"},
                                                                                 {"[a.b, -]", "[-, a.b]"},
                                                                                 {"[a, -] P{b}", "[-, b]"}}) {
    const Redistribution free = plan(from, to, std::nullopt);
    const int64_t peak = PeakBytes(free, {DType::kF32, shape}, mesh);
    EXPECT_EQ(plan(from, to, peak), free);
    try {
      EXPECT_LT(PeakBytes(plan(from, to, peak - 1), {DType::kF32, shape}, mesh), peak);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
    }
  }
  EXPECT_EQ(MessageOf([&] { plan("[a, -]", "[-, -]", 1000); }),
            "cannot redistribute f32[64, 64] from [a, -] to [-, -] with 1000 bytes a rank: every plan that "
            "moves no "
            "more than the greedy one takes at least 20480");
}

TEST(PeakBytesTest, ByHand) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=4,b=2");
  const CostModel cost_model(mesh);
  const auto peak = [&](absl::string_view from, absl::string_view to, const Shape& shape) {
    return PeakBytes(PlanRedistribution(Layout::Parse(from, mesh), Layout::Parse(to, mesh),
                                        {DType::kU8, shape}, mesh, cost_model),
                     {DType::kU8, shape}, mesh);
  };
  EXPECT_EQ(peak("[a, -]", "[a, -]", {8, 8}), 16);
  EXPECT_EQ(peak("[-, -]", "[a, -]", {8, 8}), 64);            // a view
  EXPECT_EQ(peak("[a, -]", "[-, -]", {8, 8}), 16 + 64);       // rows arrive in place
  EXPECT_EQ(peak("[-, a]", "[-, -]", {8, 8}), 16 + 64 + 64);  // columns do not
  EXPECT_EQ(peak("[-, -] P{a}", "[-, a]", {8, 8}), 64 + 64 + 16);
  EXPECT_EQ(peak("[-, -] P{a}", "[-, -]", {8, 8}), 64 + 64);
  EXPECT_EQ(peak("[a, -]", "[-, -]", {5, 3}), 6 + 15);
}

TEST(RedistributionPlannerErrorTest, MisuseIsNamed) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  const auto plan = [&](const Layout& from, const Layout& to, const Shape& shape) {
    return MessageOf([&] { PlanRedistribution(from, to, {DType::kF32, shape}, mesh, CostModel(mesh)); });
  };
  EXPECT_EQ(plan(Layout(1, 1).WithShard(0, 0), Layout(2, 1), {4}),
            "cannot redistribute [dp] to [-, -]: one has 1 dims, the other 2");
  EXPECT_EQ(plan(Layout(1, 1), Layout(1, 2), {4}), "layout [-] is for 2 mesh axes, but mesh (dp=2) has 1");
  EXPECT_EQ(plan(Layout(1, 1), Layout(1, 1).WithShard(0, 0), {4, 4}),
            "layout [-] has 1 dims, but the tensor's shape is [4, 4]");
}

// Cut to whole numbers over one axis, an average leaves another sum, and another average, than over both.
TEST(RedistributionPlannerErrorTest, AveragesOfIntegersStandAlone) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  const auto message = [&](absl::string_view from, absl::string_view to, DType dtype) {
    return MessageOf([&] {
      PlanRedistribution(Layout::Parse(from, mesh), Layout::Parse(to, mesh), {dtype, {4}}, mesh,
                         CostModel(mesh));
    });
  };
  for (const char* text : {"[-] P{a:sum,b:avg}", "[-] P{a:avg,b:sum}", "[-] P{a,b:avg}"}) {
    const Layout layout = Layout::Parse(text, mesh);
    for (DType dtype : {DType::kI32, DType::kI64, DType::kU8, DType::kBool}) {
      const std::string name(DTypeName(dtype));
      const std::string expected =
          absl::StrCat("layout ", layout.ToString(mesh), " of ", name, ": averages of ", name,
                       " depend on the order of the axes, expected avg over one axis and no other Partial");
      EXPECT_EQ(message(text, "[-]", dtype), expected);
      EXPECT_EQ(message("[-]", text, dtype), expected);
    }
    for (DType dtype : {DType::kF32, DType::kF16}) {
      PlanRedistribution(layout, Layout(1, 2), {dtype, {4}}, mesh, CostModel(mesh));
    }
  }
  for (const char* text : {"[b] P{a:avg}", "[-] P{b:avg}", "[-] P{a,b}", "[-] P{a,b:max}"}) {
    PlanRedistribution(Layout::Parse(text, mesh), Layout(1, 2), {DType::kI32, {4}}, mesh, CostModel(mesh));
  }
}

TEST(RedistributionBoundTest, ByHand) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=4,b=4");
  const auto bound = [&](absl::string_view from, absl::string_view to) {
    return RedistributionBound(Layout::Parse(from, mesh), Layout::Parse(to, mesh), {DType::kU8, {16, 16}},
                               mesh);
  };
  EXPECT_EQ(bound("[a, b]", "[b, a]"), 16);
  EXPECT_EQ(bound("[a.b, -]", "[-, a.b]"), 15);
  EXPECT_EQ(bound("[a.b, -]", "[b, -]"), 64);
  EXPECT_EQ(bound("[-, -]", "[a, b]"), 0);
  EXPECT_EQ(bound("[-, -] P{a}", "[a, -]"), 96);             // (3 + 3) x 256 receipts shared by 16
  EXPECT_EQ(bound("[-, -] P{a,b}", "[-, -]"), 2 * 15 * 16);  // an all-reduce over 16
  EXPECT_EQ(bound("[-, -] P{a,b}", "[a, b]"), 15 * 16);
  EXPECT_EQ(bound("[-, b] P{a}", "[-, -] P{a}"), 192);  // a term's own gather
}

}  // namespace
}  // namespace weft
