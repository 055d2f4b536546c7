// What the validator tries: cases of an op, strategies that it offers, compositions; and the reasons' table.

#include "tools/rules/layout_strategy.h"

#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ops/toy_ops.h"
#include "tools/rules/deliberate.h"

namespace weft {
namespace {

using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

std::vector<std::string> Offered(const OpDef& op) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2");
  std::vector<std::string> texts;
  for (const LayoutStrategy& strategy : OfferedOnAxis(MakeCase(op, op.Samples()[0], 0)))
    texts.push_back(strategy.ToString(mesh));
  return texts;
}

TEST(OpCaseTest, ExtentsAreVariedAsFarAsTheOpTakesThem) {
  std::set<std::string> shapes;
  for (const OpCase& c : OpCases(kToyMatmul, /*exhaustive=*/false)) {
    shapes.insert(c.types[0].shape.ToString() + " " + c.types[1].shape.ToString());
  }
  // The sample is [3, 5] x [5, 2].
  EXPECT_THAT(shapes, UnorderedElementsAre("[3, 5] [5, 2]", "[5, 3] [3, 7]", "[4, 6] [6, 8]", "[1, 5] [5, 2]",
                                           "[3, 1] [1, 2]", "[3, 5] [5, 1]", "[0, 5] [5, 2]", "[3, 0] [0, 2]",
                                           "[3, 5] [5, 0]"));
  EXPECT_GT(OpCases(kToyMatmul, /*exhaustive=*/true).size(), shapes.size());
  // toy_iota's extent is an attribute.
  EXPECT_EQ(OpCases(kToyIota, /*exhaustive=*/false).size(), 1u);
}

TEST(OpCaseTest, TheRangeOfAnIndexFollowsWhatItIndexes) {
  for (const OpCase& c : OpCases(kToyEmbedding, /*exhaustive=*/false)) {
    const int64_t vocabulary = c.types[1].shape[0];
    if (vocabulary == 0) continue;
    EXPECT_EQ(c.sample.operands[0].high, static_cast<double>(vocabulary)) << c.ToString();
  }
}

TEST(OpCaseTest, SpecialValuesArePlantedInOneOperandAtATime) {
  const OpCase c = MakeCase(kToyMatmul, kToyMatmul.Samples()[0], 0);
  const std::vector<CaseValues> values = ValuesOf(c, 1);
  ASSERT_EQ(values.size(), 6u);
  for (const CaseValues& draw : values) {
    for (int operand : {0, 1}) {
      const std::vector<double> elements = draw.operands[operand].ToVector<double>();
      const bool finite = absl::c_all_of(elements, [](double x) { return std::isfinite(x); });
      EXPECT_EQ(finite, draw.planted != operand) << draw.name;
    }
  }
}

TEST(LayoutStrategyTest, OffersWhatTheRuleSays) {
  EXPECT_THAT(Offered(kToyMatmul),
              UnorderedElementsAre("[-, -], [-, -] -> [-, -]", "[a, -], [-, -] -> [a, -]",
                                   "[-, a], [a, -] -> [-, -] P{a}", "[-, -], [-, a] -> [-, a]",
                                   "[-, -] P{a}, [-, -] -> [-, -] P{a}", "[-, -], [-, -] P{a} -> [-, -] P{a}",
                                   "[-, -] P{a:avg}, [-, -] -> [-, -] P{a:avg}",
                                   "[-, -], [-, -] P{a:avg} -> [-, -] P{a:avg}"));
  EXPECT_THAT(Offered(kToyRowMax),
              UnorderedElementsAre("[-, -] -> [-]", "[a, -] -> [a]", "[-, a] -> [-] P{a:max}"));
  // A dim of the output alone is split where the caller wishes it; in-place operands stay.
  EXPECT_THAT(Offered(kToyIota), UnorderedElementsAre("-> [-]", "-> [a]"));
  EXPECT_THAT(Offered(kToySgd), UnorderedElementsAre("[-, -], [-, -] -> [-, -]", "[a, -], [a, -] -> [a, -]",
                                                     "[-, a], [-, a] -> [-, a]"));
}

TEST(LayoutStrategyTest, CompositionsNestInEveryOrder) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=3");
  std::mt19937_64 random(1);
  const OpCase c = MakeCase(kToyRelu, kToyRelu.Samples()[0], 0);
  const Sampled<LayoutStrategy> all = Compositions(c, mesh, /*limit=*/1000, random);
  std::set<std::string> texts;
  for (const LayoutStrategy& strategy : all.taken) texts.insert(strategy.ToString(mesh));
  // Three strategies an axis: nine, and two more where both axes split one dim.
  EXPECT_EQ(texts.size(), 11u);
  EXPECT_EQ(all.total, 11);
  EXPECT_THAT(texts, IsSupersetOf({"[a.b, -] -> [a.b, -]", "[b.a, -] -> [b.a, -]", "[b, a] -> [b, a]"}));
  EXPECT_EQ(Compositions(c, mesh, /*limit=*/4, random).taken.size(), 4u);
  // A maximum beside a sum fits no layout.
  for (const LayoutStrategy& strategy :
       Compositions(MakeCase(kToyRowMax, kToyRowMax.Samples()[0], 0), mesh, 1000, random).taken) {
    EXPECT_FALSE(strategy.outputs[0].IsPartial(0) && strategy.outputs[0].IsPartial(1) &&
                 strategy.outputs[0].partial_op(0) != strategy.outputs[0].partial_op(1));
  }
}

TEST(DeliberateTest, TheFirstEntryThatFitsGivesTheReason) {
  EXPECT_THAT(DeliberateReason("relu", "f0 -> f0", "[-] P{a:max} -> [-] P{a:max}"),
              ::testing::HasSubstr("only sums and averages pass"));
  EXPECT_EQ(DeliberateReason("relu", "f0! -> f0!", "[a] -> [a]"), "");
  EXPECT_THAT(DeliberateReason("settle", "f0 -> f0", "[-] P{a} -> [-] P{a}"),
              ::testing::HasSubstr("to have a Partial reduced"));
  for (const Deliberate& entry : DeliberateList()) EXPECT_STRNE(entry.reason, "");
}

}  // namespace
}  // namespace weft
