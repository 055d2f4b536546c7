#include "ops/sharding/propagate.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

struct Operand {
  Shape shape;
  std::string layout;
  DType dtype = DType::kF32;
};

Strategy Plan(const OpDef& op, absl::string_view mesh_text, const std::vector<Operand>& operands,
              const void* attributes, const std::string& like = "", PropagationTrace* trace = nullptr) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  TensorTypes types;
  std::vector<Layout> layouts;
  for (const Operand& operand : operands) {
    types.push_back({operand.dtype, operand.shape});
    layouts.push_back(Layout::Parse(operand.layout, mesh));
  }
  const TensorTypes outputs = op.Infer(types, attributes);
  const Layout wish = like.empty() ? Layout() : Layout::Parse(like, mesh);
  return Propagate({.op = &op,
                    .attributes = attributes,
                    .operand_types = types,
                    .operand_layouts = layouts,
                    .output_types = outputs,
                    .like = like.empty() ? nullptr : &wish},
                   mesh, CostModel(mesh), trace);
}

// "[dp, -], [-, tp] -> [dp, tp]".
std::string Text(const Strategy& strategy, absl::string_view mesh_text) {
  if (strategy.decomposed) return "decomposed";
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  const auto layouts = [&](const std::vector<Layout>& values) {
    return absl::StrJoin(values, ", ",
                         [&](std::string* out, const Layout& l) { out->append(l.ToString(mesh)); });
  };
  return absl::StrCat(layouts(strategy.operands), " -> ", layouts(strategy.outputs));
}

template <class A, class R>
std::string PlanText(const Op<A, R>& op, absl::string_view mesh, const std::vector<Operand>& operands,
                     const std::type_identity_t<A>& attributes = {}, const std::string& like = "") {
  return Text(Plan(op, mesh, operands, &attributes, like), mesh);
}

constexpr char kGrid[] = "dp=2,tp=2";

TEST(PropagateTest, OneDeviceHasOneStrategy) {
  EXPECT_EQ(PlanText(kToyMatmul, "", {{{4, 8}, "[-, -]"}, {{8, 6}, "[-, -]"}}), "[-, -], [-, -] -> [-, -]");
  EXPECT_EQ(PlanText(kToyIota, kGrid, {}, {.rows = 5}), " -> [-]") << "nothing asks for a split";
}

TEST(PropagateTest, MatmulsOfTensorParallelism) {
  EXPECT_EQ(PlanText(kToyMatmul, kGrid, {{{64, 32}, "[dp, -]"}, {{32, 128}, "[-, tp]"}}),
            "[dp, -], [-, tp] -> [dp, tp]")
      << "column parallel";
  EXPECT_EQ(PlanText(kToyMatmul, kGrid, {{{64, 128}, "[dp, tp]"}, {{128, 32}, "[tp, -]"}}),
            "[dp, tp], [tp, -] -> [dp, -] P{tp}")
      << "row parallel";
  EXPECT_EQ(
      PlanText(kToyMatmul, kGrid, {{{64, 32}, "[dp, -]"}, {{64, 128}, "[dp, tp]"}}, {.transpose_x = true}),
      "[dp, -], [dp, tp] -> [-, tp] P{dp}")
      << "weight gradient: Partial over the batch's axis";
  EXPECT_EQ(
      PlanText(kToyMatmul, kGrid, {{{64, 128}, "[dp, tp]"}, {{32, 128}, "[-, tp]"}}, {.transpose_w = true}),
      "[dp, tp], [-, tp] -> [dp, -] P{tp}")
      << "input gradient of column parallel";
}

TEST(PropagateTest, ASplitOnOneSideSlicesTheOther) {
  EXPECT_EQ(PlanText(kToyMatmul, "tp=4", {{{64, 128}, "[-, -]"}, {{128, 32}, "[tp, -]"}}),
            "[-, tp], [tp, -] -> [-, -] P{tp}");
}

TEST(PropagateTest, TheSmallerOperandMoves) {
  // x and w are split by different factors on dp: gathering w is 16 KiB, moving x more.
  EXPECT_EQ(PlanText(kToyMatmul, "dp=2", {{{4096, 64}, "[dp, -]"}, {{64, 64}, "[dp, -]"}}),
            "[dp, -], [-, -] -> [dp, -]");
  EXPECT_EQ(PlanText(kToyMatmul, "dp=2", {{{64, 64}, "[-, dp]"}, {{64, 4096}, "[-, dp]"}}),
            "[-, -], [-, dp] -> [-, dp]");
}

TEST(PropagateTest, PartialsPassThroughLinearGroups) {
  EXPECT_EQ(PlanText(kToyAdd, kGrid, {{{8, 6}, "[dp, -] P{tp}"}, {{8, 6}, "[dp, -]"}}),
            "[dp, -] P{tp}, [dp, -] P{tp} -> [dp, -] P{tp}")
      << "a residual joins";
  EXPECT_EQ(PlanText(kToyMatmul, "tp=2", {{{8, 6}, "[-, -] P{tp}"}, {{6, 4}, "[-, -]"}}),
            "[-, -] P{tp}, [-, -] -> [-, -] P{tp}");
  EXPECT_EQ(PlanText(kToyMatmul, kGrid, {{{8, 6}, "[-, -] P{dp}"}, {{6, 4}, "[-, -] P{tp}"}}),
            "[-, -] P{dp}, [-, -] P{tp} -> [-, -] P{dp,tp}")
      << "two groups, an axis each";
  EXPECT_EQ(PlanText(kToyAdd, "a=2", {{{8}, "[-] P{a:avg}"}, {{8}, "[-]"}}),
            "[-] P{a:avg}, [-] P{a:avg} -> [-] P{a:avg}");
  EXPECT_EQ(PlanText(kToySum, "a=2", {{{8}, "[-]"}, {{8}, "[-] P{a}"}, {{8}, "[-]"}}),
            "[-] P{a}, [-] P{a}, [-] P{a} -> [-] P{a}");
}

// Cut to whole numbers, the averages of 1 and 2 and of 2 and 3 are 1 and 2, and that of 1 + 2 and 2 + 3 is 4.
TEST(PropagateTest, AveragesOfIntegersAreReducedFirst) {
  for (DType dtype : {DType::kI32, DType::kI64, DType::kU8}) {
    EXPECT_EQ(PlanText(kToyAdd, "a=2", {{{8}, "[-] P{a:avg}", dtype}, {{8}, "[-] P{a:avg}", dtype}}),
              "[-], [-] -> [-]");
    EXPECT_EQ(PlanText(kToyAdd, "a=2", {{{8}, "[-] P{a}", dtype}, {{8}, "[-]", dtype}}),
              "[-] P{a}, [-] P{a} -> [-] P{a}");
  }
}

TEST(PropagateTest, OtherPartialsAreReducedFirst) {
  EXPECT_EQ(PlanText(kToyRelu, kGrid, {{{8, 6}, "[dp, -] P{tp}"}}), "[dp, -] -> [dp, -]") << "not linear";
  EXPECT_EQ(PlanText(kToyMatmul, "tp=2", {{{8, 6}, "[-, -] P{tp}"}, {{6, 4}, "[-, -] P{tp}"}}),
            "[-, -] P{tp}, [-, -] -> [-, -] P{tp}")
      << "each a group of its own: the product of sums is no sum of products, so the smaller one is reduced";
  EXPECT_EQ(PlanText(kToyRowDivide, "tp=2", {{{8, 6}, "[-, -]"}, {{8}, "[-] P{tp}"}}),
            "[-, -], [-] -> [-, -]");
  EXPECT_EQ(PlanText(kToyAdd, "a=2", {{{8}, "[-] P{a:max}"}, {{8}, "[-]"}}), "[-], [-] -> [-]");
  EXPECT_EQ(PlanText(kToyAdd, "a=2", {{{8}, "[-] P{a:avg}"}, {{8}, "[-] P{a}"}}), "[-], [-] -> [-]")
      << "kinds differ";
}

TEST(PropagateTest, NothingBecomesPartialBecauseItLooksFree) {
  EXPECT_EQ(PlanText(kToyAdd, kGrid, {{{8, 6}, "[-, -]"}, {{8, 6}, "[-, -]"}}), "[-, -], [-, -] -> [-, -]");
  EXPECT_EQ(PlanText(kToyMatmul, kGrid, {{{512, 512}, "[-, -]"}, {{512, 512}, "[-, -]"}}),
            "[-, -], [-, -] -> [-, -]");
}

TEST(PropagateTest, ABiasBesideASplitProductIsPartial) {
  EXPECT_EQ(PlanText(kToyLinear, kGrid, {{{64, 128}, "[dp, tp]"}, {{128, 32}, "[tp, -]"}, {{32}, "[-]"}}),
            "[dp, tp], [tp, -], [-] P{tp} -> [dp, -] P{tp}");
  EXPECT_EQ(PlanText(kToyLinear, kGrid, {{{64, 32}, "[dp, -]"}, {{32, 128}, "[-, tp]"}, {{128}, "[tp]"}}),
            "[dp, -], [-, tp], [tp] -> [dp, tp]");
  EXPECT_EQ(PlanText(kToyLinear, "tp=2", {{{8, 6}, "[-, -] P{tp}"}, {{6, 4}, "[-, -]"}, {{4}, "[-]"}}),
            "[-, -] P{tp}, [-, -], [-] P{tp} -> [-, -] P{tp}");
}

TEST(PropagateTest, AnOutputFollowsOnlyWhatItIsMadeOf) {
  EXPECT_EQ(PlanText(kToyLinearGrad, kGrid, {{{64, 32}, "[dp, -]"}, {{64, 128}, "[dp, tp]"}}),
            "[dp, -], [dp, tp] -> [-, tp] P{dp}, [tp] P{dp}")
      << "column parallel";
  EXPECT_EQ(PlanText(kToyLinearGrad, "tp=2", {{{64, 128}, "[-, tp]"}, {{64, 32}, "[-, -]"}}),
            "[-, tp], [-, -] -> [tp, -], [-]")
      << "row parallel: the bias's gradient is whole, since it is made of dy";
  EXPECT_EQ(PlanText(kToyLinearGrad, "tp=2", {{{8, 6}, "[-, -] P{tp}"}, {{8, 4}, "[-, -]"}}),
            "[-, -] P{tp}, [-, -] -> [-, -] P{tp}, [-]");
  EXPECT_EQ(PlanText(kToyLinearGrad, "tp=2", {{{8, 6}, "[-, -]"}, {{8, 4}, "[-, -] P{tp}"}}),
            "[-, -], [-, -] P{tp} -> [-, -] P{tp}, [-] P{tp}");
  EXPECT_EQ(PlanText(kToyReluLinear, "tp=2", {{{8, 6}, "[-, tp]"}, {{6, 4}, "[tp, -]"}, {{4}, "[-]"}}),
            "[-, tp], [tp, -], [-] P{tp} -> [-, -] P{tp}, [-, tp]")
      << "what lacks the bias does not need it whole";
  EXPECT_EQ(PlanText(kToyReluLinear, "tp=2", {{{8, 6}, "[-, -]"}, {{6, 4}, "[-, -] P{tp}"}, {{4}, "[-]"}}),
            "[-, -], [-, -] P{tp}, [-] P{tp} -> [-, -] P{tp}, [-, -]");
}

TEST(PropagateTest, ReductionsMakeTheKindThatTheRuleSays) {
  EXPECT_EQ(PlanText(kToyRowMax, kGrid, {{{8, 6}, "[-, dp.tp]"}}), "[-, dp.tp] -> [-] P{dp,tp:max}");
  EXPECT_EQ(PlanText(kToyRowSum, kGrid, {{{8, 6}, "[dp, tp]"}}), "[dp, tp] -> [dp] P{tp}");
  EXPECT_EQ(PlanText(kToyRowSum, kGrid, {{{8, 6}, "[-, tp] P{dp}"}}), "[-, tp] P{dp} -> [-] P{dp,tp}");
  EXPECT_EQ(PlanText(kToyRowMax, kGrid, {{{8, 6}, "[-, tp] P{dp}"}}), "[-, tp] -> [-] P{tp:max}");
  EXPECT_EQ(PlanText(kToyMoments, kGrid, {{{8, 6}, "[dp, tp]"}}), "[dp, tp] -> [dp] P{tp}, [dp] P{tp}");
}

TEST(PropagateTest, WholeFactorsAreGatheredOrDecomposed) {
  EXPECT_EQ(PlanText(kToyRowCumulate, kGrid, {{{8, 6}, "[dp, tp]"}}), "[dp, -] -> [dp, -]");
  EXPECT_EQ(PlanText(kToyNormalize, kGrid, {{{8, 6}, "[dp, tp]"}}), "decomposed");
  EXPECT_EQ(PlanText(kToyNormalize, kGrid, {{{8, 6}, "[dp, -]"}}), "[dp, -] -> [dp, -]");
  EXPECT_EQ(PlanText(kToyNormalize, "tp=1", {{{8, 6}, "[-, tp]"}}), "[-, -] -> [-, -]")
      << "an axis of one splits nothing";
}

TEST(PropagateTest, IndexedFactorsAreOwnerComputes) {
  EXPECT_EQ(PlanText(kToyEmbedding, kGrid, {{{16}, "[dp]", DType::kI64}, {{50, 8}, "[tp, -]"}}),
            "[dp], [tp, -] -> [dp, -] P{tp}");
}

TEST(PropagateTest, AGradientIsMadeAsItsOperandLies) {
  const std::vector<Operand> operands = {{{16, 8}, "[dp, -]"}, {{16}, "[dp]", DType::kI64}};
  EXPECT_EQ(PlanText(kToyEmbeddingGrad, kGrid, operands, {.rows = 50}), "[dp, -], [dp] -> [-, -] P{dp}");
  EXPECT_EQ(PlanText(kToyEmbeddingGrad, kGrid, operands, {.rows = 50}, "[tp, -]"),
            "[dp, -], [dp] -> [tp, -] P{dp}");
  EXPECT_EQ(PlanText(kToyEmbeddingGrad, "dp=2,tp=2,cp=2", {{{16, 8}, "[cp, -]"}, {{16}, "[cp]", DType::kI64}},
                     {.rows = 50}, "[tp.dp, -]"),
            "[cp, -], [cp] -> [tp.dp, -] P{cp}")
      << "in the operand's nesting order";
  EXPECT_EQ(PlanText(kToyIota, kGrid, {}, {.rows = 5}, "[tp]"), " -> [tp]");
}

TEST(PropagateTest, AFactorNestsInOneOrderEverywhere) {
  EXPECT_EQ(PlanText(kToyAdd, kGrid, {{{8, 6}, "[tp.dp, -]"}, {{8, 6}, "[-, -]"}}),
            "[tp.dp, -], [tp.dp, -] -> [tp.dp, -]");
  EXPECT_EQ(PlanText(kToyMatmul, kGrid, {{{4096, 64}, "[-, tp.dp]"}, {{64, 16}, "[dp.tp, -]"}}),
            "[-, tp.dp], [tp.dp, -] -> [-, -] P{dp,tp}")
      << "the smaller operand is nested anew";
  EXPECT_EQ(PlanText(kToyMatmul, kGrid, {{{16, 64}, "[-, tp.dp]"}, {{64, 4096}, "[dp.tp, -]"}}),
            "[-, dp.tp], [dp.tp, -] -> [-, -] P{dp,tp}");
  EXPECT_EQ(PlanText(kToyAdd, kGrid, {{{64, 6}, "[tp, -]"}, {{64, 6}, "[tp.dp, -]"}}),
            "[tp.dp, -], [tp.dp, -] -> [tp.dp, -]");
  EXPECT_EQ(PlanText(kToyTranspose, kGrid, {{{8, 6}, "[tp.dp, -]"}}), "[tp.dp, -] -> [-, tp.dp]");
}

TEST(PropagateTest, UnevenTinyAndEmptyShapesChangeNothing) {
  EXPECT_EQ(PlanText(kToyMatmul, "a=4", {{{5, 3}, "[a, -]"}, {{3, 2}, "[-, -]"}}),
            "[a, -], [-, -] -> [a, -]");
  EXPECT_EQ(PlanText(kToyMatmul, "a=2", {{{1, 1}, "[-, a]"}, {{1, 1}, "[a, -]"}}),
            "[-, a], [a, -] -> [-, -] P{a}");
  EXPECT_EQ(PlanText(kToyRowSum, "a=2", {{{0, 4}, "[a, -]"}}), "[a, -] -> [a]");
}

TEST(PropagateTest, AxesOfOneKeepWhatIsThere) {
  EXPECT_EQ(PlanText(kToyMatmul, "a=1,b=1", {{{4, 8}, "[a, -]"}, {{8, 6}, "[-, b]"}}),
            "[a, -], [-, b] -> [a, b]");
  EXPECT_EQ(PlanText(kToyAdd, "a=1", {{{4}, "[-] P{a}"}, {{4}, "[-]"}}), "[-] P{a}, [-] P{a} -> [-] P{a}");
}

TEST(PropagateTest, InPlaceOperandsStay) {
  EXPECT_EQ(PlanText(kToySgd, kGrid, {{{8, 6}, "[dp, -]"}, {{8, 6}, "[-, -] P{dp}"}}),
            "[dp, -], [dp, -] -> [dp, -]");
  EXPECT_EQ(PlanText(kToySgd, kGrid, {{{8, 6}, "[-, -]"}, {{8, 6}, "[dp, tp]"}}), "[-, -], [-, -] -> [-, -]");
  EXPECT_EQ(PlanText(kToySgd, kGrid, {{{8, 6}, "[tp.dp, -]"}, {{8, 6}, "[dp.tp, -]"}}),
            "[tp.dp, -], [tp.dp, -] -> [tp.dp, -]");
}

TEST(PropagateTest, InPlaceOperandsThatWouldMoveAreAnError) {
  try {
    PlanText(kToySgd, kGrid, {{{8, 6}, "[-, -] P{tp}"}, {{8, 6}, "[dp, -]"}});
    FAIL() << "a Partial parameter was updated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("toy_sgd(f32[8, 6] [-, -] P{tp}, f32[8, 6] [dp, -])"));
    EXPECT_THAT(error.message(), HasSubstr("an operand of 'p' is updated in place and would have to move"));
    // Reduce-scatter of 4 x 6 over tp, gather-free: or the all-reduce, with g split or whole.
    EXPECT_THAT(
        error.message(),
        HasSubstr("nearest legal layouts: ([dp, -], [dp, -]) for 384 bytes, 15.0 us; ([-, -], [-, -]) for"));
  }
}

TEST(PropagateTest, PredictsRedistributionAndComputeShare) {
  const ToyMatmulAttributes none;
  // 2^27 points, and 1 MiB written; split over 4, a quarter, and nothing moves.
  const double one =
      Plan(kToyMatmul, "", {{{512, 512}, "[-, -]"}, {{512, 512}, "[-, -]"}}, &none).microseconds;
  const double four =
      Plan(kToyMatmul, "a=4", {{{512, 512}, "[a, -]"}, {{512, 512}, "[-, -]"}}, &none).microseconds;
  EXPECT_NEAR(one, 512.0 * 512 * 512 / 1e5 + 4 * 512 * 512 / 3e4, 1e-6);
  EXPECT_NEAR(four, one / 4, 1e-6);
  // All-gather of 1 MiB over 4: 3 (5 + 1e-4 * 2^18) us; w moves, since x's split saves three quarters of the
  // work.
  const double moved =
      Plan(kToyMatmul, "a=4", {{{4096, 512}, "[a, -]"}, {{512, 512}, "[a, -]"}}, &none).microseconds;
  EXPECT_NEAR(
      moved - Plan(kToyMatmul, "a=4", {{{4096, 512}, "[a, -]"}, {{512, 512}, "[-, -]"}}, &none).microseconds,
      3 * (5 + 1e-4 * 262144), 1e-6);
}

TEST(PropagateTest, ChoosesAlikeEveryTime) {
  const std::vector<Operand> operands = {{{64, 64}, "[a, b.c]"}, {{64, 64}, "[c, a]"}};
  const ToyMatmulAttributes none;
  const Strategy first = Plan(kToyMatmul, "a=2,b=2,c=2", operands, &none);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Plan(kToyMatmul, "a=2,b=2,c=2", operands, &none), first);
}

std::vector<std::string> LayoutTexts(absl::string_view mesh_text) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  std::vector<Layout> layouts = {Layout(2, mesh.num_axes())};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<Layout> longer;
    for (const Layout& layout : layouts) {
      longer.push_back(layout);
      longer.push_back(layout.WithShard(axis, 0));
      longer.push_back(layout.WithShard(axis, 1));
      longer.push_back(layout.WithPartial(axis));
    }
    layouts = std::move(longer);
  }
  std::vector<std::string> texts;
  for (const Layout& layout : layouts) texts.push_back(layout.ToString(mesh));
  return texts;
}

// The trace is the search: it chooses the same, its sums are the choice's cost, nothing complete is cheaper.
void CheckTraceOf(absl::string_view mesh, const std::vector<Operand>& operands) {
  const ToyMatmulAttributes none;
  const Strategy plain = Plan(kToyMatmul, mesh, operands, &none);
  PropagationTrace trace;
  const Strategy traced = Plan(kToyMatmul, mesh, operands, &none, "", &trace);
  const std::string what = absl::StrCat(operands[0].layout, " x ", operands[1].layout);
  ASSERT_EQ(plain, traced) << what;
  int chosen = 0;
  for (const TracedCandidate& candidate : trace.candidates) {
    if (candidate.fate == CandidateFate::kPruned) {
      ASSERT_TRUE(candidate.operands.empty()) << what;
      continue;
    }
    ASSERT_EQ(candidate.picks.size(), static_cast<size_t>(DeviceMesh::Parse(mesh).num_axes())) << what;
    ASSERT_GE(candidate.total_us(), plain.microseconds * (1 - 1e-6)) << what;
    const bool tie = candidate.total_us() <= plain.microseconds * (1 + 1e-10);
    ASSERT_EQ(tie, candidate.fate != CandidateFate::kCostlier) << what;
    if (candidate.fate != CandidateFate::kChosen) continue;
    ++chosen;
    ASSERT_EQ(candidate.operands, plain.operands) << what;
    ASSERT_EQ(candidate.outputs, plain.outputs) << what;
    ASSERT_NEAR(candidate.total_us(), plain.microseconds, 1e-9 * plain.microseconds) << what;
    ASSERT_EQ(candidate.operand_us.size(), 2u) << what;
    ASSERT_NEAR(candidate.operand_us[0] + candidate.operand_us[1], candidate.transfer_us, 1e-9) << what;
  }
  ASSERT_EQ(chosen, 1) << what;
}

TEST(PropagationTraceTest, ChoosesWhatTheSearchWithoutItChooses) {
  for (const std::string& x : LayoutTexts(kGrid)) {
    for (const std::string& w : LayoutTexts(kGrid)) CheckTraceOf(kGrid, {{{6, 8}, x}, {{8, 5}, w}});
  }
  const std::vector<std::string> cube = LayoutTexts("a=2,b=2,c=2");
  for (size_t i = 0; i < cube.size(); ++i) {
    for (size_t j = i % 7; j < cube.size(); j += 7) {
      CheckTraceOf("a=2,b=2,c=2", {{{64, 512}, cube[i]}, {{512, 8}, cube[j]}});
    }
  }
}

TEST(PropagationTraceTest, ListsEveryCandidateAndEveryRefusal) {
  const ToyMatmulAttributes none;
  PropagationTrace trace;
  Plan(kToyMatmul, "tp=2", {{{8, 6}, "[tp, -]"}, {{6, 4}, "[-, tp]"}}, &none, "", &trace);
  std::vector<std::string> found;
  const DeviceMesh mesh = DeviceMesh::Parse("tp=2");
  for (const TracedCandidate& candidate : trace.candidates) {
    found.push_back(absl::StrCat(candidate.picks[0].factor, " ", candidate.operands[0].ToString(mesh), " ",
                                 candidate.operands[1].ToString(mesh), " ",
                                 candidate.outputs[0].ToString(mesh)));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"0 [tp, -] [-, -] [tp, -]", "2 [-, -] [-, tp] [-, tp]",
                                             "-1 [-, -] [-, -] [-, -]"}));
  const char* linear = "no operand is Partial there";
  EXPECT_EQ(trace.refused,
            (std::vector<RefusedCandidate>{
                {0, 1, -1, "no operand is split by it there"}, {0, -1, 0, linear}, {0, -1, 1, linear}}));
}

TEST(PropagationTraceTest, SaysWhyACallIsDecomposed) {
  const NoAttributes none;
  PropagationTrace trace;
  Plan(kToyNormalize, kGrid, {{{8, 6}, "[dp, tp]"}}, &none, "", &trace);
  EXPECT_EQ(trace.decomposed_because, "operand 0 is split by d! along tp");
  EXPECT_TRUE(trace.candidates.empty());
}

TEST(PropagationTraceTest, WholeFactorsInPlaceOperandsAndMixedGroupsAreRefusals) {
  const NoAttributes none;
  PropagationTrace trace;
  Plan(kToyAdd, "tp=2", {{{8}, "[-] P{tp:avg}"}, {{8}, "[-] P{tp}"}}, &none, "", &trace);
  const char* mixed = "no operand of it is Partial there, or not of one kind of sum that is linear";
  EXPECT_THAT(trace.refused, testing::Contains(RefusedCandidate{0, -1, 0, mixed}));
  trace = {};
  Plan(kToyRowCumulate, "tp=2", {{{8, 6}, "[-, tp]"}}, &none, "", &trace);
  EXPECT_THAT(trace.refused, testing::Contains(RefusedCandidate{0, 1, -1, "it must stay whole"}));
  trace = {};
  Plan(kToySgd, "tp=2", {{{8, 6}, "[-, -]"}, {{8, 6}, "[tp, -]"}}, &none, "", &trace);
  EXPECT_THAT(trace.refused, testing::Contains(RefusedCandidate{
                                 0, 0, -1, "an operand that is updated in place would move"}));
}

// The beam keeps 8: on three axes with many candidates each, the others are listed with where they were
// dropped.
TEST(PropagationTraceTest, NamesWhatTheBeamDropped) {
  const ToyMatmulAttributes none;
  PropagationTrace trace;
  Plan(kToyMatmul, "a=2,b=2,c=2", {{{8, 8}, "[a, b.c]"}, {{8, 8}, "[a.b, c]"}}, &none, "", &trace);
  int complete = 0;
  int dropped = 0;
  for (const TracedCandidate& candidate : trace.candidates) {
    if (candidate.fate != CandidateFate::kPruned) {
      ++complete;
      continue;
    }
    ++dropped;
    EXPECT_GE(candidate.picks.size(), 2u);
    EXPECT_LE(candidate.picks.size(), 3u);
  }
  EXPECT_EQ(complete, 8);
  EXPECT_GT(dropped, 0);
}

}  // namespace
}  // namespace weft
