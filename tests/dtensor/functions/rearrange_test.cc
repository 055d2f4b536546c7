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
