#include "dtensor/inspect/explain.h"

#include <nlohmann/json.hpp>

#include "dtensor/autograd/backward.h"
#include "dtensor/context/propagation_cache.h"
#include "dtensor/functions.h"
#include "dtensor/inspect/comm_report.h"
#include "gmock/gmock.h"
#include "mesh/redistribution/price.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/power.h"
#include "ops/elementwise/select.h"
#include "ops/normalization/softmax.h"
#include "ops/optimizer/optimizer_update.h"
#include "ops/product/contract.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

Explanation ExplainMatMul(const DTensor& x, const DTensor& w) {
  return Explain(kContract, {x, w}, {"mk", "kn", "mn"});
}

int64_t BytesMoved(MeshContext& context, const std::function<void()>& body) {
  context.world().ledger().Clear();
  body();
  const int64_t num_bytes = CollectCommReport(context).TotalBytes();
  context.world().ledger().Clear();
  return num_bytes;
}

// What it says will be done is what is done: the layout of the result, and the bytes in the ledger.
TEST(ExplainTest, IsWhatTheCallDoes) {
  const Tensor x_full = RandomF64({5, 6}, 1);
  const Tensor w_full = RandomF64({6, 3}, 2);
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    const std::vector<Layout> layouts = AllLayouts(context->mesh(), 2, {ReduceOp::kSum});
    for (size_t i = 0; i < layouts.size(); ++i) {
      const DTensor x = Lay(context, x_full, layouts[i]);
      const DTensor w = Lay(context, w_full, layouts[(i * 7 + 3) % layouts.size()]);
      const Explanation explanation = ExplainMatMul(x, w);
      ASSERT_NE(explanation.chosen(), nullptr);
      DTensor y;
      EXPECT_EQ(BytesMoved(*context, [&] { y = MatMul(x, w); }), explanation.num_bytes()) << explanation;
      EXPECT_EQ(y.layout(), explanation.outputs[0]) << explanation;
      EXPECT_EQ(explanation.chosen()->outputs, explanation.outputs);
      for (const Explanation::Candidate& candidate : explanation.candidates) {
        EXPECT_EQ(candidate.chosen, candidate.why.empty()) << explanation;
        if (candidate.moves.empty()) continue;
        double transfer_us = 0;
        for (const Explanation::Move& move : candidate.moves) transfer_us += move.us;
        EXPECT_NEAR(transfer_us, candidate.transfer_us, 1e-9);
      }
    }
  });
}

TEST(ExplainTest, NothingRunsAndNothingIsCached) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 4}, 1), "[a, -]");
    const DTensor w = Lay(context, RandomF64({4, 4}, 2), "[a, -]");
    EXPECT_EQ(BytesMoved(*context, [&] { ExplainMatMul(x, w); }), 0);
    EXPECT_EQ(context->cache().stats(), CacheStats());
  });
}

// Times by hand, f64: all-gather of w's 64 x 64 over 2: 5 + 1e-4 * 16384 us; x is 64 times as large. Work of
// 2^24 points, halved where a factor is split; outputs of 2 MiB at 3e4 bytes per microsecond, halved
// likewise.
TEST(ExplainTest, Prints) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF64, {4096, 64}, 1, Layout::Parse("[dp, -]", context->mesh()));
    const DTensor w = Full(context, DType::kF64, {64, 64}, 1, Layout::Parse("[dp, -]", context->mesh()));
    EXPECT_EQ(
        ExplainMatMul(x, w).ToString(),
        "contract(f64[4096, 64] [dp, -], f64[64, 64] [dp, -])\n"
        "mesh dp=2, rule m k, k n -> m n\n"
        "   dp       x        w        -> outputs    moved B  move us  compute us  output us  total us\n"
        "*  split m  [dp, -]  [-, -]   [dp, -]       32768    11.6     83.9        35.0       130.5     "
        "chosen; w "
        "by all_gather(dp)\n"
        "   split k  [-, dp]  [dp, -]  [-, -] P{dp}  1048576  62.4     105.4       69.9       237.7     "
        "107.3 us "
        "more; x by all_to_all(dp)\n"
        "   neither  [-, -]   [-, -]   [-, -]        2129920  126.5    167.8       69.9       364.2     "
        "233.7 us "
        "more; x by all_gather(dp); w by all_gather(dp)\n"
        "no candidate: dp: split n: no operand is split by it there\n"
        "no candidate: dp: Partial {x}: no operand is Partial there\n"
        "no candidate: dp: Partial {w}: no operand is Partial there\n");
  });
}

// The search goes by the greedy plan's time where something is Partial, and so chooses to reduce x whole. What stands beside
// steps and bytes is their time: a reduce-scatter and a permute would have taken less.
TEST(ExplainTest, TimesAreThoseOfTheStepsBesideThem) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=4,b=4");
  const CostModel cost_model(mesh);
  const TensorType type = {DType::kF32, {4096, 4096}};
  const std::vector<Layout> layouts = {Layout::Parse("[b, -] P{a}", mesh), Layout::Parse("[a.b, -]", mesh)};
  const NoAttributes attributes;
  const NoScalars scalars;
  const Explanation explanation = ExplainErased(kMaximum, {type, type}, layouts, &attributes, &scalars,
                                                /*like=*/nullptr, mesh, cost_model);
  bool estimated = false;
  for (const Explanation::Candidate& candidate : explanation.candidates) {
    ASSERT_EQ(candidate.moves.size(), 2u) << explanation;
    for (size_t i = 0; i < 2; ++i) {
      const Explanation::Move& move = candidate.moves[i];
      const RedistributionPrice price = PriceRedistribution(layouts[i], move.to, type, mesh, cost_model);
      EXPECT_EQ(move.us, price.microseconds) << explanation;
      EXPECT_EQ(move.num_bytes, price.num_bytes) << explanation;
      EXPECT_EQ(move.steps, price.steps) << explanation;
    }
    if (candidate.outputs[0] != layouts[1]) continue;
    estimated = true;
    EXPECT_EQ(candidate.moves[0].steps, "reduce_scatter(a), permute(a,b)");
    EXPECT_LT(candidate.total_us(), explanation.total_us()) << explanation;
    EXPECT_THAT(candidate.why, testing::EndsWith(" us more as estimated"));
  }
  EXPECT_TRUE(estimated) << explanation;
}

TEST(ExplainTest, Json) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 6}, 1), "[dp, -]");
    const DTensor w = Lay(context, RandomF64({6, 2}, 2), "[dp, -]");
    const Explanation explanation = ExplainMatMul(x, w);
    const nlohmann::json json = nlohmann::json::parse(explanation.ToJson());
    EXPECT_EQ(json["op"], "contract");
    EXPECT_EQ(json["mesh"], "dp=2");
    EXPECT_EQ(json["rule"], "m k, k n -> m n");
    EXPECT_EQ(json["operands"][1]["layout"], "[dp, -]");
    ASSERT_EQ(json["candidates"].size(), explanation.candidates.size());
    int64_t chosen_bytes = -1;
    for (const auto& candidate : json["candidates"]) {
      if (!candidate["chosen"]) continue;
      chosen_bytes = 0;
      for (const auto& move : candidate["moves"]) chosen_bytes += move["bytes"].get<int64_t>();
      EXPECT_EQ(candidate["total_us"], explanation.total_us());
    }
    EXPECT_EQ(chosen_bytes, explanation.num_bytes());
    EXPECT_EQ(json["bytes"], chosen_bytes);
  });
}

TEST(ExplainTest, ADecompositionIsExplainedCallByCall) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({3, 8}, 1), "[-, a]");
    const Explanation explanation = Explain(kSoftmax, {x});
    EXPECT_EQ(explanation.chosen(), nullptr);
    EXPECT_EQ(explanation.decomposed_because.substr(0, 21), "operand 0 is split by");
    ASSERT_GE(explanation.parts.size(), 2u);
    DTensor y;
    EXPECT_EQ(BytesMoved(*context, [&] { y = Softmax(x); }), explanation.num_bytes());
    EXPECT_GT(explanation.num_bytes(), 0);
    EXPECT_EQ(explanation.outputs, (std::vector<Layout>{y.layout()}));
    EXPECT_THAT(explanation.ToString(), HasSubstr("runs as its decomposition, since operand 0 is split by"));
    // The call as ExplainCalls sees it, is one explanation, with the same parts.
    const std::vector<Explanation> calls = ExplainCalls(context->state(), [&] { Softmax(x); });
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].ToString(), explanation.ToString());
  });
}

TensorTypes InferPower(absl::Span<const TensorType> operands, const NoAttributes&) { return {operands[0]}; }
std::string PowerRule(absl::Span<const TensorType>, const NoAttributes&) { return "r v!, r v! -> r v!"; }
Values PowerOfElements(Emitter& emitter, absl::Span<const Value> operands, const NoAttributes&,
                       const NoScalars&) {
  return {emitter.Emit(kPow, {operands[0], operands[1]})};
}
// a to the power of b, by rows that must be whole, unless it runs as its decomposition.
constinit const Op<> kRowPower = {{
    .name = "row_power",
    .operands = "a b",
    .infer = InferPower,
    .rule = PowerRule,
    .decomposition = PowerOfElements,
}};

// The one of the decomposition's calls in which it stands twice moves it once.
TEST(ExplainTest, AnOperandThatStandsTwiceInADecomposedCallMovesOnce) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({3, 4}, 1, 1, 2), "[-, a] P{b}");
    const DTensor y = Lay(context, RandomF64({3, 4}, 2, 1, 2), "[-, a] P{b}");
    int64_t of_one = 0;
    for (const auto& [b, num_moves] : {std::pair(x, 1), std::pair(y, 2)}) {
      const Explanation explanation = Explain(kRowPower, {x, b});
      ASSERT_EQ(explanation.parts.size(), 1u) << explanation;
      EXPECT_GT(explanation.num_bytes(), 0);
      if (num_moves == 1) of_one = explanation.num_bytes();
      EXPECT_EQ(explanation.num_bytes(), num_moves * of_one) << explanation;
      EXPECT_EQ(BytesMoved(*context, [&, b = b] { Call(kRowPower, {x, b}); }), explanation.num_bytes());
      const std::vector<Explanation> calls = ExplainCalls(context->state(), [&, b = b] {
        Call(kRowPower, {x, b});
      });
      ASSERT_EQ(calls.size(), 1u);
      EXPECT_EQ(calls[0].ToString(), explanation.ToString());
    }
  });
}

TEST(ExplainTest, CallsOfABody) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    const DTensor x = Lay(context, RandomF64({4, 6}, 1), "[a, -]").RequiresGrad();
    const DTensor w = Lay(context, RandomF64({6, 2}, 2), "[-, -]");
    DTensor y;
    const std::vector<Explanation> forward = ExplainCalls(state, [&] {
      const PathGuard path(state, state.PathId("blocks.0"));
      y = Sum(Relu(MatMul(x, w)));
    });
    std::vector<std::string> names;
    for (const Explanation& call : forward) names.push_back(absl::StrCat(call.op, " ", call.path));
    EXPECT_EQ(names, (std::vector<std::string>{"contract blocks.0", "relu blocks.0", "sum blocks.0"}));
    const std::vector<Explanation> backward = ExplainCalls(state, [&] { Backward(y); });
    EXPECT_GE(backward.size(), 3u);
    EXPECT_TRUE(x.grad().defined());
    EXPECT_EQ(state.call_observer(), nullptr);
    // Also after an error.
    EXPECT_THAT(ErrorOf([&] { ExplainCalls(state, [&] { MatMul(x, x); }); }), HasSubstr("contract"));
    EXPECT_EQ(state.call_observer(), nullptr);
  });
}

TEST(ExplainTest, OneDeviceAndAnyNumberOfOperands) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 6}, 1), Layout(2, 0));
    const Explanation explanation = Explain(kAdd, {x, x});
    ASSERT_EQ(explanation.candidates.size(), 1u);
    EXPECT_TRUE(explanation.candidates[0].chosen);
    EXPECT_THAT(explanation.ToString(), HasSubstr("mesh of no axes"));
  });
}

TEST(ExplainTest, Misuse) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 6}, 1), "[a, -]");
    EXPECT_EQ(ErrorOf([&] { Explain(kAdd, {}); }), "add: Explain needs an operand");
    EXPECT_THAT(ErrorOf([&] { Explain(kAdd, {x}); }), HasSubstr("add: expected 2 operands (a b), got 1"));
    EXPECT_THAT(ErrorOf([&] { Explain(kContract, {x, x}, {"mk", "kn", "mn"}); }), HasSubstr("contract"));
  });
}

}  // namespace
}  // namespace weft
