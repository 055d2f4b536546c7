#include "dtensor/redistribution/implicit.h"

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/local_function.h"
#include "dtensor/context/redistribution_cache.h"
#include "dtensor/functions.h"
#include "dtensor/inspect/comm_report.h"
#include "gmock/gmock.h"
#include "ops/optimizer/optimizer_update.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Mode = ImplicitRedistribution;

// On every rank of two: x split over its rows, w over its rows too, so that the smaller one, w, must move.
struct Operands {
  explicit Operands(const IntrusivePtr<MeshContext>& context)
      : x(Lay(context, RandomF64({64, 6}, 1), "[dp, -]")), w(Lay(context, RandomF64({6, 4}, 2), "[dp, -]")) {}
  DTensor x;
  DTensor w;
};

TEST(ImplicitRedistributionTest, ForbidThrowsBeforeAnythingMoves) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const Operands o(context);
    RankState& state = context->state();
    const PathGuard path(state, state.PathId("blocks.0.mlp"));
    const ImplicitRedistributionGuard guard(state, Mode::kForbid);
    const std::string message = ErrorOf([&] { MatMul(o.x, o.w); });
    EXPECT_EQ(
        message,
        "contract(f64[64, 6] [dp, -], f64[6, 4] [dp, -]) in module blocks.0.mlp: implicit redistribution is "
        "forbidden here, Redistribute first; operand 1 f64[6, 4] would move [dp, -] -> [-, -] by "
        "all_gather(dp): 192 bytes, 10.0 us; nearest legal layouts: ([dp, -], [-, -]) for 192 bytes, 10.0 "
        "us; "
        "([-, dp], [dp, -]) for 1536 bytes, 10.1 us; ([-, -], [-, -]) for 3264 bytes, 20.2 us");
    EXPECT_EQ(LedgerText(*context), "");
    EXPECT_EQ(guard.num_bytes(), 0);
    // As the message says.
    const DTensor whole = o.w.Redistribute(Layout(2, 1));
    EXPECT_EQ(LayoutText(MatMul(o.x, whole)), "[dp, -]");
  });
}

TEST(ImplicitRedistributionTest, TheModeEndsWithItsScopeAndTheInnermostCounts) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const Operands o(context);
    RankState& state = context->state();
    EXPECT_EQ(state.implicit_guard(), nullptr);
    {
      ImplicitRedistributionGuard outer(state, Mode::kForbid);
      {
        const ImplicitRedistributionGuard inner(state, Mode::kAllow);
        MatMul(o.x, o.w);
        EXPECT_EQ(inner.num_bytes(), 192);
      }
      EXPECT_EQ(outer.num_bytes(), 192);
      EXPECT_THAT(ErrorOf([&] { MatMul(o.x, o.w); }), HasSubstr("is forbidden here"));
      // Calls that need nothing, and slices, which send nothing.
      EXPECT_EQ(LayoutText(Relu(o.x)), "[dp, -]");
      EXPECT_EQ(LayoutText(o.x + Full(context, DType::kF64, {64, 6}, 1)), "[dp, -]");
    }
    EXPECT_EQ(state.implicit_guard(), nullptr);
    EXPECT_EQ(LayoutText(MatMul(o.x, o.w)), "[dp, -]");
  });
}

// The budget is what the ledger counts, to the byte.
TEST(ImplicitRedistributionTest, ABudgetIsHeldToTheByte) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const Operands o(context);
    RankState& state = context->state();
    {
      const ImplicitRedistributionGuard guard(state, Mode::kAllow, /*max_bytes=*/2 * 192);
      MatMul(o.x, o.w);
      MatMul(o.x, o.w);
      EXPECT_EQ(guard.num_bytes(), 2 * 192);
      EXPECT_THAT(ErrorOf([&] { MatMul(o.x, o.w); }),
                  HasSubstr("may move 384 bytes, 384 have moved and these are 192 more; operand 1"));
      EXPECT_EQ(guard.num_bytes(), 2 * 192);
    }
    EXPECT_EQ(CollectCommReport(*context).TotalBytes(), 2 * 192);
    const ImplicitRedistributionGuard tight(state, Mode::kAllow, 191);
    EXPECT_THAT(ErrorOf([&] { MatMul(o.x, o.w); }), HasSubstr("may move 191 bytes, 0 have moved"));
    // An outer budget holds inside an inner guard that has none.
    const ImplicitRedistributionGuard inner(state, Mode::kAllow);
    EXPECT_THAT(ErrorOf([&] { MatMul(o.x, o.w); }), HasSubstr("may move 191 bytes, 0 have moved"));
  });
}

// A move is planned once, and counted and made by that plan from then on.
TEST(ImplicitRedistributionTest, CountsByTheCachedPlan) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const Operands o(context);
    const ImplicitRedistributionGuard guard(context->state(), Mode::kAllow);
    for (int i = 0; i < 3; ++i) MatMul(o.x, o.w);
    EXPECT_EQ(guard.num_bytes(), 3 * 192);
    EXPECT_EQ(context->redistribution_cache().stats(), (CacheStats{.hits = 5, .misses = 1}));
  });
}

TEST(ImplicitRedistributionTest, WarnsOnceForEachOpAndPath) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const Operands o(context);
    RankState& state = context->state();
    std::vector<std::string> lines;
    state.set_warning_sink([&](const std::string& line) { lines.push_back(line); });
    const auto call_in = [&](const char* path_text) {
      const PathGuard path(state, state.PathId(path_text));
      MatMul(o.x, o.w);
    };
    call_in("a");
    EXPECT_TRUE(lines.empty()) << "no guard, no word";
    {
      const ImplicitRedistributionGuard guard(state, Mode::kWarn);
      for (const char* path : {"a", "b", "a", "b"}) call_in(path);
      EXPECT_EQ(guard.num_bytes(), 4 * 192);
      o.x + Lay(context, RandomF64({64, 6}, 3), "[-, dp]");
    }
    const ImplicitRedistributionGuard again(state, Mode::kWarn);
    call_in("a");
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_THAT(lines[0], HasSubstr("contract(f64[64, 6] [dp, -], f64[6, 4] [dp, -]) in module a: implicit "
                                    "redistribution; operand 1 f64[6, 4] would move [dp, -] -> [-, -]"));
    EXPECT_THAT(lines[1], HasSubstr("in module b"));
    EXPECT_THAT(lines[2], HasSubstr("add("));
  });
}

TEST(ImplicitRedistributionTest, WhatIsAskedForIsNotImplicit) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 6}, 1), "[dp, -]");
    const DTensor bias = Lay(context, RandomF64({6}, 2), "[-]").RequiresGrad();
    const ImplicitRedistributionGuard guard(context->state(), Mode::kForbid);
    x.FullTensor();
    const DTensor y = x.Redistribute(Layout::Parse("[-, dp]", context->mesh()));
    CallLocal({.name = "pieces",
               .operands = {{.layout = Layout(2, 1), .gradient = Layout(2, 1)}},
               .outputs = {{.type = x.type(), .layout = Layout(2, 1), .gradient = Layout(2, 1)}},
               .forward = [](absl::Span<const Tensor> pieces) { return std::vector<Tensor>{pieces[0]}; },
               .backward = nullptr},
              {y});
    // The all-reduce of a replicated leaf's gradient, twice used, is what data parallelism is.
    const DTensor loss = Sum((x + bias) * bias);
    loss.Item();
    Backward(loss);
    EXPECT_EQ(LayoutText(bias.grad()), "[-]");
    EXPECT_EQ(guard.num_bytes(), 0);
  });
}

// A softmax over a split dim combines two numbers per row: the op itself. To gather its operand would not be.
TEST(ImplicitRedistributionTest, ALoweringsOwnStatisticsAreNotImplicit) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor full = RandomF64({3, 8}, 1);
    const DTensor x = Lay(context, full, "[-, a]");
    const ImplicitRedistributionGuard guard(context->state(), Mode::kForbid);
    const DTensor y = Softmax(x);
    EXPECT_EQ(LayoutText(y), "[-, a]");
    EXPECT_NE(LedgerText(*context), "");
    EXPECT_EQ(guard.num_bytes(), 0);
    EXPECT_TRUE(AllClose(y.FullTensor(), Softmax(Lay(context, full, "[-, -]")).FullTensor(), 1e-12));
  });
}

TEST(ImplicitRedistributionTest, ReachesBackwardWhereItIsInForceThere) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    const Tensor full = RandomF64({4, 6}, 1);
    const DTensor leaf = Lay(context, full, "[a, -]").RequiresGrad();
    const auto forward = [&] {
      const DTensor x = leaf * 2;  // not a leaf: its gradient goes back where it lies
      return Sum(MatMul(x, Lay(context, RandomF64({6, 256}, 2), "[-, a]")));
    };
    const DTensor first = forward();
    {
      const ImplicitRedistributionGuard guard(state, Mode::kForbid);
      const std::string message = ErrorOf([&] { Backward(first); });
      EXPECT_THAT(message, HasSubstr("backward of contract: implicit redistribution is forbidden here"));
      EXPECT_THAT(message, HasSubstr("the gradient of operand 0 f64[4, 6] would move [-, -] P{a} -> [a, -]"));
      EXPECT_THAT(message, HasSubstr("in forward, Redistribute operand 0 from [a, -] to where it is used"));
    }
    const ImplicitRedistributionGuard counting(state, Mode::kAllow);
    const DTensor second = forward();
    const int64_t in_forward = counting.num_bytes();
    Backward(second);
    EXPECT_EQ(in_forward, 4 * 6 * 8) << "an all-gather of x";
    EXPECT_EQ(counting.num_bytes() - in_forward, 4 * 6 * 8) << "a reduce-scatter of its gradient";
  });
}

TEST(ImplicitRedistributionTest, AnInPlaceOperandThatWouldMoveNamesTheNearestLayouts) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor terms = Lay(context, RandomF64({4, 6}, 1), "[-, -] P{a}");
    const DTensor gradient = Lay(context, RandomF64({4, 6}, 1), "[a, -]");
    const DTensor scale = Full(context, DType::kF32, {}, 1);
    const std::string message = ErrorOf([&] { Call(kSgdUpdate, {terms, gradient, scale}, {}, {.lr = 0.1}); });
    EXPECT_THAT(message, HasSubstr("sgd_update(f64[4, 6] [-, -] P{a}, f64[4, 6] [a, -], f32[] [])"));
    EXPECT_THAT(message, HasSubstr("nearest legal layouts: ([a, -], [a, -], []) for 192 bytes"));
  });
}

// What inference refuses, by types alone, is told with the layouts too.
TEST(DispatchErrorsTest, NameTypesAndLayouts) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 6}, 1), "[a, -]");
    EXPECT_THAT(ErrorOf([&] {
                  x + Lay(context, RandomF64({5, 6}, 1), "[-, a]");
                }),
                HasSubstr("; in add(f64[4, 6] [a, -], f64[5, 6] [-, a])"));
    const IntrusivePtr<MeshContext> other = Bind(context, DeviceMesh::Parse("b=2"));
    EXPECT_THAT(ErrorOf([&] {
                  x + Lay(other, RandomF64({4, 6}, 1), "[b, -]");
                }),
                HasSubstr("different meshes: a=2 and b=2 in add(f64[4, 6] [a, -], f64[4, 6] [b, -])"));
  });
}

}  // namespace
}  // namespace weft
