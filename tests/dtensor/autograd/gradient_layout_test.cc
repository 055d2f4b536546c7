// Where gradients lie on their way, and how often they move.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/recompute.h"
#include "dtensor/functions.h"
#include "dtensor/redistribution/implicit.h"
#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"
#include "gmock/gmock.h"
#include "runtime/comm/flight_recorder.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// What Backward over `loss` moves.
std::string MovedBy(const DTensor& loss) {
  MeshContext& context = *loss.context();
  context.world().ledger().Clear();
  Backward(loss);
  return LedgerText(context);
}

struct RedistributeGradient {
  const char* source;
  const char* arriving;
  const char* expected;
};

TEST(GradientLayoutTest, OfRedistribute) {
  const RedistributeGradient table[] = {
      // A sharded or replicated source: its own layout.
      {"[a, -]", "[-, a]", "[a, -]"},
      {"[a, -]", "[-, -] P{a}", "[a, -]"},
      {"[-, -]", "[a, -]", "[-, -]"},
      {"[-, -]", "[-, -] P{a}", "[-, -]"},
      {"[a.b, -]", "[b.a, -]", "[a.b, -]"},
      // A Partial source: as it arrives.
      {"[-, -] P{a}", "[-, -]", "[-, -]"},
      {"[-, -] P{a}", "[a, -]", "[a, -]"},
      {"[-, -] P{a}", "[-, -] P{a}", "[-, -] P{a}"},
      {"[-, -] P{a:max}", "[-, -] P{a}", "[-, -] P{a}"},
      {"[-, -] P{a,b}", "[b.a, -]", "[b.a, -]"},
      // Each axis for itself.
      {"[-, -] P{a}", "[a, b]", "[a, -]"},
      {"[a, -] P{b}", "[-, b] P{a}", "[a, b]"},
      {"[b, -] P{a}", "[-, -] P{a}", "[b, -] P{a}"},
  };
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    const Tensor value = RandomF64({4, 4}, 1);
    const DTensor leaf = Lay(context, RandomF64({4, 4}, 2), "[-, -]").RequiresGrad();
    for (const RedistributeGradient& row : table) {
      const DTensor source = leaf.Redistribute(Layout::Parse(row.source, context->mesh()));
      const DTensor result = source.Redistribute(Layout::Parse("[-, a]", context->mesh()));
      const NoGradGuard no_grad(context->state());
      const DTensors gradients =
          result.impl()->node->Backward(*context, {Lay(context, value, row.arriving)}, {});
      ASSERT_EQ(gradients.size(), 1u);
      EXPECT_EQ(LayoutText(gradients[0]), row.expected) << row.source << " <- " << row.arriving;
      EXPECT_TRUE(AllClose(gradients[0].FullTensor(), value, 1e-14)) << row.source << " <- " << row.arriving;
    }
  });
}

TEST(GradientLayoutTest, ARedistributeMayFixIt) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const Layout whole(2, 2);
    const DTensor leaf = Lay(context, RandomF64({4, 4}, 2), whole).RequiresGrad();
    const auto layout_of = [&](const char* source_text, const RedistributeOptions& options,
                               const char* arriving) {
      const DTensor source = leaf.Redistribute(Layout::Parse(source_text, context->mesh()));
      const DTensor result = source.Redistribute(whole, options);
      const NoGradGuard no_grad(context->state());
      return LayoutText(
          result.impl()->node->Backward(*context, {Lay(context, RandomF64({4, 4}, 1), arriving)}, {})[0]);
    };
    EXPECT_EQ(layout_of("[-, -]", {.gradient = {{0, Partial()}}}, "[-, -] P{a}"), "[-, -] P{a}");
    EXPECT_EQ(layout_of("[-, -] P{a}", {.gradient = {{0, Replicate()}}}, "[-, -] P{a}"), "[-, -]");
    EXPECT_EQ(layout_of("[-, -]", {.gradient = {{0, Shard(1)}, {1, Shard(0)}}}, "[-, -]"), "[b, a]");
    // Where it lies so already, the nesting stays.
    EXPECT_EQ(layout_of("[a.b, -]", {.gradient = {{0, Shard(0)}}}, "[-, -]"), "[a.b, -]");
  });
}

TEST(GradientLayoutTest, AReplicatedLeafOfTwoUsesIsReducedOnce) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 3}, 1), "[dp, -]");
    const DTensor w = Lay(context, RandomF64({3, 3}, 2), "[-, -]").RequiresGrad();
    EXPECT_EQ(MovedBy(Sum(MatMul(Gelu(MatMul(x, w)), w))), "all_reduce dp grad");
    EXPECT_EQ(LayoutText(w.grad()), "[-, -]");
  });
}

TEST(GradientLayoutTest, AShardedLeafIsReduceScattered) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 3}, 1), "[dp, -]");
    const DTensor w = Lay(context, RandomF64({3, 3}, 2), "[dp, -]").RequiresGrad();
    const DTensor whole = w.Redistribute(Layout(2, 1), {.gradient = {{0, Partial()}}});
    EXPECT_EQ(MovedBy(Sum(MatMul(x, whole))), "reduce_scatter dp grad");
    EXPECT_EQ(LayoutText(w.grad()), "[dp, -]");
  });
}

// Each use takes a slice of w along tp; the slices' gradients are added first and gathered once.
TEST(GradientLayoutTest, ALeafThatCallsMoveIsBroughtToRestOnce) {
  OnMesh("tp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({3, 4}, 1), "[-, tp]");
    const DTensor w = Lay(context, RandomF64({4, 4}, 2), "[-, -]").RequiresGrad();
    const DTensor loss = Sum(MatMul(x, w) + MatMul(2.0 * x, w));
    EXPECT_EQ(LedgerText(*context), "");
    EXPECT_EQ(MovedBy(loss), "all_gather tp grad");
    EXPECT_TRUE(AllClose(w.grad().FullTensor(),
                         MatMul(Transpose(3.0 * x, 0, 1), Full(context, DType::kF64, {3, 4}, 1)).FullTensor(),
                         1e-14));
  });
}

// Megatron's pair: the only movement in backward is the gradient of the input, and the data-parallel sums.
TEST(GradientLayoutTest, TensorParallelPairOverShardedData) {
  OnMesh("dp=2,tp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 6}, 1), "[dp, -]").RequiresGrad();
    const DTensor up = Lay(context, RandomF64({6, 8}, 2), "[-, tp]").RequiresGrad();
    const DTensor down = Lay(context, RandomF64({8, 6}, 3), "[tp, -]").RequiresGrad();
    const DTensor bias = Lay(context, RandomF64({6}, 4), "[-]").RequiresGrad();
    const DTensor y = (MatMul(Gelu(MatMul(x, up)), down) + bias).Redistribute(x.layout());
    EXPECT_EQ(LedgerText(*context), "all_reduce tp activation");
    EXPECT_EQ(MovedBy(Sum(Square(y))),
              // bias, down, up over dp, and the input over tp; each at its leaf.
              "all_reduce dp grad, all_reduce dp grad, all_reduce dp grad, all_reduce tp grad");
    for (const DTensor& leaf : {x, up, down, bias}) EXPECT_EQ(leaf.grad().layout(), leaf.layout());
  });
}

// Terms that the leaf's dtype may not hold are summed as they come, beside those of other uses, and cast behind that: no move
// is the cast's own.
TEST(GradientLayoutTest, ALeafThatIsCastIsReducedOnce) {
  struct Row {
    DType own, wide;
    double first, second;  // rank 0's term, and rank 1's
  };
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const ImplicitRedistributionGuard forbid(context->state(), ImplicitRedistribution::kForbid);
    for (const Row& row :
         {Row{DType::kF16, DType::kF32, 70000, -69999}, Row{DType::kF16, DType::kBF16, 66048, -65536},
          Row{DType::kF32, DType::kF64, 0x1p130, 0x1p100 - 0x1p130}}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(row.own), " cast to ", DTypeName(row.wide)));
      const auto terms = [&](DType dtype, double first, double second) {
        return Lay(context, FromDoubles(dtype, {2, 3}, {first, first, first, second, second, second}),
                   "[dp, -]");
      };
      const DTensor x = terms(row.wide, row.first, row.second), ones = terms(row.own, 1, 1);
      const DTensor start = Lay(context, WholeNumbers(row.own, {3, 3}), "[-, -]");
      const auto cast_use = [&](const DTensor& w) { return Sum(MatMul(x, Cast(w, row.wide))); };
      const auto both_uses = [&](const DTensor& w) {
        return cast_use(w) + Cast(Sum(MatMul(ones, w)), row.wide);
      };
      const auto recomputed = [&](const DTensor& w) {
        return Recompute([&](const DTensors& in) -> DTensors { return {cast_use(in[0])}; }, {w})[0];
      };
      const auto expect = [&](double sum, const DTensor& gradient) {
        EXPECT_EQ(gradient.dtype(), row.own);
        EXPECT_EQ(gradient.FullTensor().ToVector<double>(),
                  FromDoubles(row.own, {9}, std::vector<double>(9, sum)).ToVector<double>());
      };
      const double of_cast = row.first + row.second;
      const std::pair<std::function<DTensor(const DTensor&)>, double> losses[] = {
          {cast_use, of_cast}, {both_uses, of_cast + 2}, {recomputed, of_cast}};
      for (const auto& [loss, sum] : losses) {
        const DTensor w = start.RequiresGrad();
        EXPECT_EQ(MovedBy(loss(w)), "all_reduce dp grad");
        expect(sum, w.grad());
      }
      const DTensor w = start.RequiresGrad();
      expect(of_cast + 2, Grad({both_uses(w)}, {w}, {.create_graph = true})[0]);
    }
  });
}

// Where the gradient rests Partial, nothing sums the terms behind the cast: they are summed before it.
TEST(GradientLayoutTest, ALeafThatIsCastAndRestsPartialHasTermsOfTheSum) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const Layout partial = Layout::Parse("[-, -] P{dp:sum}", context->mesh());
    const DTensor w = Lay(context, WholeNumbers(DType::kF16, {3, 3}), "[-, -]").RequiresGrad(partial);
    const DTensor x = Lay(
        context, FromDoubles(DType::kF32, {2, 3}, {70000, 70000, 70000, -69999, -69999, -69999}), "[dp, -]");
    EXPECT_EQ(MovedBy(Sum(MatMul(x, Cast(w, DType::kF32)))), "all_reduce dp activation");
    EXPECT_EQ(w.grad().layout(), partial);
    EXPECT_EQ(w.grad().FullTensor().ToVector<double>(), std::vector<double>(9, 1));
  });
}

TEST(GradientLayoutTest, AccumulationOverPassesAddsAtRest) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor w = Lay(context, RandomF64({3}, 2), "[-]").RequiresGrad();
    for (int pass = 1; pass <= 3; ++pass) {
      const DTensor x = Lay(context, RandomF64({4, 3}, pass), "[dp, -]");
      EXPECT_EQ(MovedBy(Sum(x * w)), "all_reduce dp grad");
    }
    std::vector<double> expected(3, 0);
    for (uint64_t pass = 1; pass <= 3; ++pass) {
      const std::vector<double> x = RandomF64({4, 3}, pass).ToVector<double>();
      for (size_t i = 0; i < x.size(); ++i) expected[i % 3] += x[i];
    }
    EXPECT_TRUE(AllClose(w.grad().ToLocal(), Tensor::FromValues<double>({3}, expected), 1e-14));
  });
}

// The calls of backward in the order in which this rank issued them: the ledger adds those up that are alike.
std::string IssuedBy(const DTensor& loss) {
  MeshContext& context = *loss.context();
  const FlightRecorder& recorder = context.world().flight_recorder();
  const size_t num_before = recorder.Snapshot().entries.size();
  Backward(loss);
  std::vector<std::string> calls;
  const std::vector<FlightEntry> entries = recorder.Snapshot().entries;
  for (size_t i = num_before; i < entries.size(); ++i) {
    calls.push_back(absl::StrCat(CollectiveName(entries[i].kind), " ",
                                 PurposeName(static_cast<Purpose>(entries[i].tag.purpose))));
  }
  return absl::StrJoin(calls, ", ");
}

// A leaf's gradient moves right after its last use, so that it can overlap with what comes after.
TEST(GradientLayoutTest, LeavesAreReducedAsSoonAsTheyCanBe) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const Layout rows = Layout::Parse("[dp, -]", context->mesh());
    const DTensor first = Lay(context, RandomF64({4, 4}, 1), "[-, -]").RequiresGrad();
    const DTensor second = Lay(context, RandomF64({4, 4}, 2), "[-, -]").RequiresGrad();
    const DTensor hidden = MatMul(Lay(context, RandomF64({4, 4}, 3), rows), first);
    const DTensor moved =
        Gelu(hidden.Redistribute(Layout::Parse("[-, dp]", context->mesh()))).Redistribute(rows);
    EXPECT_EQ(IssuedBy(Sum(MatMul(moved, second))),
              "all_reduce grad, all_to_all activation, all_to_all activation, all_reduce grad");
  });
}

// Collectives of backward are written down under the path that recorded the call.
TEST(GradientLayoutTest, BackwardRunsUnderThePathsOfForward) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    DTensor loss;
    const DTensor x = Lay(context, RandomF64({4, 3}, 1), "[dp, -]").RequiresGrad();
    {
      const PathGuard path(state, state.PathId("mlp"));
      loss = Sum(Square(x.Redistribute(Layout::Parse("[-, dp]", context->mesh()))));
    }
    EXPECT_EQ(MovedBy(loss), "all_to_all dp activation");
    EXPECT_EQ(state.PathName(context->world().ledger().entries()[0].tag.path_id), "mlp");
  });
}

}  // namespace
}  // namespace weft
