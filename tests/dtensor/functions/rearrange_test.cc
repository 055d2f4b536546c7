// Slices, joins, pads and rolls of a dim that is split: what they send is seen by guards, budgets and Explain, to the
// byte of the ledger, and worked out once.

#include "dtensor/functions/rearrange.h"

#include <functional>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/context/rearrangement_cache.h"
#include "dtensor/functions.h"
#include "dtensor/inspect/comm_report.h"
#include "dtensor/inspect/explain.h"
#include "dtensor/redistribution/implicit.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using testing::HasSubstr;

struct Case {
  const char* name;
  std::function<DTensor(const DTensor&, const DTensor&)> call;
};

std::vector<Case> Cases() {
  return {{"slice", [](const DTensor& x, const DTensor&) { return Slice(x, 0, 3, 7); }},
          {"concat",
           [](const DTensor& x, const DTensor& y) {
             return Concat({x, y}, 0);
           }},
          {"pad",
           [](const DTensor& x, const DTensor&) {
             return Pad(x, {{2, 1}, {0, 0}});
           }},
          {"roll", [](const DTensor& x, const DTensor&) { return Roll(x, 4, 0); }}};
}

// Extents that leave uneven pieces, over one axis and over two, beside an axis that splits another dim.
void ForEachLayout(
    const std::function<void(const IntrusivePtr<MeshContext>&, const DTensor&, const DTensor&)>& body) {
  for (const char* layout : {"[a, -]", "[a.b, -]", "[b.a, -]", "[a, b]"}) {
    OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
      body(context, Lay(context, RandomF64({11, 3}, 1), layout), Lay(context, RandomF64({6, 3}, 2), layout));
    });
  }
}

TEST(RearrangeTest, GuardsAndExplainCountTheLedgersBytes) {
  for (const Case& of : Cases()) {
    ForEachLayout([&](const IntrusivePtr<MeshContext>& context, const DTensor& x, const DTensor& y) {
      RankState& state = context->state();
      context->world().ledger().Clear();
      int64_t guarded = 0;
      std::vector<Explanation> explanations;
      {
        const ImplicitRedistributionGuard guard(state, ImplicitRedistribution::kAllow);
        const ExplainGuard explain(state, &explanations);
        of.call(x, y);
        guarded = guard.num_bytes();
      }
      EXPECT_GT(guarded, 0) << of.name << " " << x.ToString();
      EXPECT_EQ(CollectCommReport(*context).TotalBytes(), guarded) << of.name << " " << x.ToString();
      ASSERT_EQ(explanations.size(), 1u) << of.name;
      EXPECT_EQ(explanations[0].op, of.name);
      EXPECT_EQ(explanations[0].num_bytes(), guarded) << of.name << " " << x.ToString();
      EXPECT_THAT(explanations[0].ToString(), HasSubstr("all_to_all(a")) << of.name;
    });
  }
}

TEST(RearrangeTest, WhatIsForbiddenOrTooMuchIsRefusedBeforeItMoves) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    const DTensor x = Lay(context, RandomF64({8, 3}, 1), "[a, -]").RequiresGrad();
    context->world().ledger().Clear();
    {
      const ImplicitRedistributionGuard guard(state, ImplicitRedistribution::kForbid);
      EXPECT_EQ(
          ErrorOf([&] { Roll(x, 1, 0); }),
          "roll along dim 0, which is split: implicit redistribution is forbidden here, Redistribute first; "
          "operand 0 f64[8, 3] would send 48 bytes of dim 0 to other ranks by all_to_all; Redistribute "
          "first, so that dim 0 is not split");
      EXPECT_EQ(LedgerText(*context), "");
      Roll(x, 1, 1);  // nothing moves
    }
    const DTensor rolled = Sum(Square(Roll(x, 1, 0)));
    const ImplicitRedistributionGuard guard(state, ImplicitRedistribution::kAllow, /*max_bytes=*/40);
    EXPECT_THAT(
        ErrorOf([&] { Roll(x, 2, 0); }),
        HasSubstr("implicit redistributions here may move 40 bytes, 0 have moved and these are 96 more"));
    EXPECT_THAT(ErrorOf([&] { Backward(rolled); }), HasSubstr("rearrange backward along dim 0"));
  });
}

// Orders of single elements, which are made Partial and reduce-scattered; casts and selections that reduce first.
std::vector<Case> Reducing() {
  using T = const DTensor&;
  return {{"strided_slice", [](T x, T) { return Slice(x, 0, {.step = 2}); }},
          {"flip", [](T x, T) { return Flip(x, {0}); }},
          {"flip",
           [](T x, T) {
             return Flip(x, {0, 1});
           }},
          {"cast", [](T x, T) { return Cast(Sum(Convert(Scale(x, 10), DType::kI64)), DType::kF64); }},
          {"NonZero", [](T x, T) { return NonZero(x, {.extent = 7}).values; }}};
}

TEST(RearrangeTest, WhatReducesByItselfIsCountedToo) {
  for (const Case& of : Reducing()) {
    ForEachLayout([&](const IntrusivePtr<MeshContext>& context, const DTensor& x, const DTensor& y) {
      RankState& state = context->state();
      const Layout whole(x.ndim(), context->mesh().num_axes());
      const Tensor expected = of.call(x.Redistribute(whole), y.Redistribute(whole)).FullTensor();
      const ImplicitRedistributionGuard guard(state, ImplicitRedistribution::kAllow);
      context->world().ledger().Clear();
      const DTensor result = of.call(x, y);
      if (absl::string_view(of.name) != "NonZero") {  // whose running count is a decomposition's
        EXPECT_EQ(CollectCommReport(*context).TotalBytes(), guard.num_bytes()) << of.name << x.ToString();
      }
      EXPECT_GT(guard.num_bytes(), 0) << of.name << " " << x.ToString();
      EXPECT_EQ(result.FullTensor().ToVector<double>(), expected.ToVector<double>()) << of.name;
      const ImplicitRedistributionGuard tight(state, ImplicitRedistribution::kAllow, /*max_bytes=*/0);
      EXPECT_THAT(ErrorOf([&] { of.call(x, y); }), HasSubstr("may move 0 bytes, 0 have moved")) << of.name;
    });
  }
}

TEST(RearrangeTest, WhatReducesByItselfIsRefusedWhereThatIsForbidden) {
  OnMesh("a=3", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({12, 3}, 1), "[a, -]");
    const DTensor sum = Sum(Convert(x, DType::kI64));
    const ImplicitRedistributionGuard guard(context->state(), ImplicitRedistribution::kForbid);
    context->world().ledger().Clear();
    EXPECT_THAT(ErrorOf([&] { Flip(x, {0}); }),
                HasSubstr("flip: implicit redistribution is forbidden here, Redistribute first; the result "
                          "f64[12, 3] would move [-, -] P{a} -> [a, -] by reduce_scatter(a): 576 bytes"));
    EXPECT_THAT(
        ErrorOf([&] { Slice(x, 0, {.step = 2}); }),
        HasSubstr("strided_slice: implicit redistribution is forbidden here, Redistribute first; the "
                  "result f64[6, 3] would move [-, -] P{a} -> [a, -] by reduce_scatter(a): 288 bytes"));
    EXPECT_THAT(ErrorOf([&] { Cast(sum, DType::kF64); }),
                HasSubstr("cast: implicit redistribution is forbidden here, Redistribute first; operand 0 "
                          "i64[] would move [] P{a} -> [] by all_reduce(a)"));
    EXPECT_EQ(LedgerText(*context), "");
    EXPECT_THAT(ErrorOf([&] { NonZero(x, {.extent = 7}); }),
                HasSubstr("NonZero: implicit redistribution is forbidden here"));
    // Nothing moves.
    EXPECT_EQ(LayoutText(Flip(x, {1})), "[a, -]");
    EXPECT_EQ(LayoutText(Slice(x, 1, {.step = 2})), "[a, -]");
    EXPECT_EQ(guard.num_bytes(), 0);
  });
}

// The gradient of a product whose other side is split is a Partial, and reduced before its rows go back.
TEST(RearrangeTest, AGradientThatIsReducedOnItsWayBackIsCounted) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({8, 4}, 1), "[a, -]").RequiresGrad();
    const DTensor w = Lay(context, RandomF64({4, 6}, 2), "[-, b]");
    const DTensor loss = Sum(MatMul(Roll(x, 1, 0), w));
    const ImplicitRedistributionGuard guard(context->state(), ImplicitRedistribution::kAllow);
    context->world().ledger().Clear();
    Backward(loss);
    EXPECT_EQ(CollectCommReport(*context).TotalBytes(), guard.num_bytes()) << LedgerText(*context);
  });
}

TEST(RearrangeTest, PlacesAreWorkedOutOnce) {
  ForEachLayout([&](const IntrusivePtr<MeshContext>& context, const DTensor& x, const DTensor&) {
    const std::vector<double> first = Slice(x, 0, 3, 7).FullTensor().ToVector<double>();
    EXPECT_EQ(context->rearrangement_cache().stats().misses, 1);
    EXPECT_EQ(Slice(x, 0, 3, 7).FullTensor().ToVector<double>(), first);
    Slice(x, 0, 2, 7);
    EXPECT_EQ(context->rearrangement_cache().stats().hits, 1);
    EXPECT_EQ(context->rearrangement_cache().stats().misses, 2);
  });
}

}  // namespace
}  // namespace weft
