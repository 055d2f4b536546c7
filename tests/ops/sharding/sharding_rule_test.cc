#include "ops/sharding/sharding_rule.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using Dims = std::vector<std::vector<int>>;

TensorTypes Types(std::vector<Shape> shapes) {
  TensorTypes types;
  for (const Shape& shape : shapes) types.push_back({DType::kF32, shape});
  return types;
}

std::string Reprint(absl::string_view text, std::vector<Shape> operands, std::vector<Shape> outputs) {
  return ShardingRule::Parse(text, Types(operands), Types(outputs)).ToString();
}

std::string MessageOf(absl::string_view text, std::vector<Shape> operands, std::vector<Shape> outputs) {
  try {
    ShardingRule::Parse(text, Types(operands), Types(outputs));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInternal);
    return error.message();
  }
  return "";
}

TEST(ShardingRuleTest, ParsesFactorsInOrderOfAppearance) {
  const ShardingRule rule = ShardingRule::Parse("m k, k n -> m n", Types({{2, 3}, {3, 4}}), Types({{2, 4}}));
  const ShardingRule expected = {.factors = {{"m", 2}, {"k", 3}, {"n", 4}},
                                 .operands = {{0, 1}, {1, 2}},
                                 .outputs = {{0, 2}},
                                 .reductions = {ReduceOp::kSum},
                                 .made_of = {{}}};
  EXPECT_EQ(rule, expected);
}

TEST(ShardingRuleTest, ParsesMarksOnesScalarsAndReductions) {
  const ShardingRule rule = ShardingRule::Parse("b, v@ d!, 1 d -> max: b, min:(), product: b d, 1",
                                                Types({{2}, {5, 3}, {7, 3}}), Types({{2}, {}, {2, 3}, {9}}));
  EXPECT_EQ(rule.factors, (std::vector<Factor>{{"b", 2}, {"v", 5, false, true}, {"d", 3, true, false}}));
  EXPECT_EQ(rule.operands, (Dims{{0}, {1, 2}, {-1, 2}}));
  EXPECT_EQ(rule.outputs, (Dims{{0}, {}, {0, 2}, {-1}}));
  EXPECT_EQ(rule.reductions,
            (std::vector<ReduceOp>{ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct, ReduceOp::kSum}));
}

TEST(ShardingRuleTest, AFactorOfOutputsAloneHasItsExtentFromThere) {
  const ShardingRule rule = ShardingRule::Parse("-> v", {}, Types({{5}}));
  EXPECT_EQ(rule.factors, (std::vector<Factor>{{"v", 5}}));
  EXPECT_TRUE(rule.operands.empty());
}

TEST(ShardingRuleTest, AnOutputMayBeMadeOfSomeOperands) {
  const ShardingRule rule =
      ShardingRule::Parse("b d, b n -> d n, max: n{1}", Types({{2, 3}, {2, 4}}), Types({{3, 4}, {4}}));
  EXPECT_EQ(rule.made_of, (Dims{{}, {1}}));
  EXPECT_TRUE(rule.IsMadeOf(0, 0));
  EXPECT_FALSE(rule.IsMadeOf(1, 0));
  EXPECT_TRUE(rule.IsMadeOf(1, 1));
  EXPECT_EQ(rule.ToString(), "b d, b n -> d n, max: n {1}");
}

TEST(ShardingRuleTest, PrintsOneForm) {
  EXPECT_EQ(Reprint(" m  k,k n->m n ", {{2, 3}, {3, 4}}, {{2, 4}}), "m k, k n -> m n");
  EXPECT_EQ(Reprint("b s d!, d -> b s d", {{2, 3, 4}, {4}}, {{2, 3, 4}}), "b s d!, d! -> b s d!");
  EXPECT_EQ(Reprint("b, v@ d -> b d", {{2}, {5, 3}}, {{2, 3}}), "b, v@ d -> b d");
  EXPECT_EQ(Reprint("b s->max :b", {{2, 3}}, {{2}}), "b s -> max: b");
  EXPECT_EQ(Reprint("a b, 1 b -> sum: a b, ()", {{2, 3}, {1, 3}}, {{2, 3}, {}}), "a b, 1 b -> a b, ()");
  EXPECT_EQ(Reprint("a, b,c -> a{ 0  2 },()", {{2}, {3}, {4}}, {{2}, {}}), "a, b, c -> a {0 2}, ()");
  EXPECT_EQ(Reprint("->a_1", {}, {{5}}), "-> a_1");
  EXPECT_EQ(Reprint("() -> ()", {{}}, {{}}), "() -> ()");
  EXPECT_EQ(Reprint("a x!~>a  y!", {{2, 6}}, {{2, 6}}), "a x! ~> a y!");
  // An indexed factor is cut by each operand's own extent.
  EXPECT_EQ(Reprint("a c@, a c@ -> a t", {{2, 3}, {2, 5}}, {{2, 8}}), "a c@, a c@ -> a t");
}

TEST(ShardingRuleTest, DefectsNameTheRuleAndThePlace) {
  EXPECT_THAT(MessageOf("a b", {{2, 3}}, {{2, 3}}), HasSubstr("sharding rule 'a b': expected one '->'"));
  EXPECT_THAT(MessageOf("a -> b -> c", {{2}}, {{2}}), HasSubstr("expected one '->'"));
  EXPECT_THAT(MessageOf("a, a ~> a", {{2}, {2}}, {{2}}), HasSubstr("a view is of one operand"));
  EXPECT_THAT(MessageOf("a, a -> a", {{2}}, {{2}}),
              HasSubstr("2 operands and 1 outputs, the call has 1 and 1"));
  EXPECT_THAT(MessageOf("a -> a, a", {{2}}, {{2}}),
              HasSubstr("1 operands and 2 outputs, the call has 1 and 1"));
  EXPECT_THAT(MessageOf("a -> a", {{2, 3}}, {{2}}), HasSubstr("'a' has 1 dims, the type is f32[2, 3]"));
  EXPECT_THAT(MessageOf("a b -> a b", {{2}}, {{2, 3}}), HasSubstr("'a b' has 2 dims, the type is f32[2]"));
  EXPECT_THAT(MessageOf("a b, b -> a", {{2, 3}, {4}}, {{2}}), HasSubstr("'b' stands for both 3 and 4"));
  EXPECT_THAT(MessageOf("a a -> a", {{2, 2}}, {{2}}), HasSubstr("'a' stands twice in one value"));
  EXPECT_THAT(MessageOf("a 2b -> a", {{2, 2}}, {{2}}),
              HasSubstr("expected a factor name, '1' or '()', got '2b'"));
  EXPECT_THAT(MessageOf("a () -> a", {{2, 2}}, {{2}}), HasSubstr("got '()'"));
  EXPECT_THAT(MessageOf("a -> mean: a", {{2}}, {{2}}), HasSubstr("unknown reduction 'mean'"));
  EXPECT_THAT(MessageOf("a -> a {1}", {{2}}, {{2}}),
              HasSubstr("an output is made of '1', which is none of 1 operands"));
  EXPECT_THAT(MessageOf("a -> a {x}", {{2}}, {{2}}), HasSubstr("an output is made of 'x'"));
  EXPECT_THAT(MessageOf("a -> a {}", {{2}}, {{2}}), HasSubstr("an output is made of no operand"));
  EXPECT_THAT(MessageOf("a -> a {0", {{2}}, {{2}}), HasSubstr("'{0' has no end"));
  EXPECT_THAT(MessageOf("a, -> a", {{2}, {}}, {{2}}), HasSubstr("a value without dims is written ()"));
}

TEST(ShardingRuleTest, ElementwiseRules) {
  EXPECT_EQ(ElementwiseRule(2, 1, 3), "f0 f1 f2, f0 f1 f2 -> f0 f1 f2");
  EXPECT_EQ(ElementwiseRule(1, 2, 0), "() -> (), ()");
  EXPECT_EQ(ElementwiseRule(0, 1, 2), " -> f0 f1");
}

TEST(ShardingRuleTest, BroadcastRulesSplitNoStretchedDim) {
  EXPECT_EQ(BroadcastRule(Types({{2, 3}, {2, 3}})), "f0 f1, f0 f1 -> f0 f1");
  EXPECT_EQ(BroadcastRule(Types({{4, 2, 3}, {3}})), "f0 f1 f2, f2 -> f0 f1 f2");
  EXPECT_EQ(BroadcastRule(Types({{2, 1}, {1, 3}})), "f0 1, 1 f1 -> f0 f1");
  EXPECT_EQ(BroadcastRule(Types({{2, 1}, {1}})), "f0 f1, f1 -> f0 f1")
      << "1 everywhere is an ordinary factor";
  EXPECT_EQ(BroadcastRule(Types({{2, 3}, {}})), "f0 f1, () -> f0 f1");
  EXPECT_EQ(BroadcastRule(Types({{}, {}})), "(), () -> ()");
  EXPECT_EQ(BroadcastRule(Types({{0, 3}, {1, 3}, {3}})), "f0 f1, 1 f1, f1 -> f0 f1");
}

TEST(ShardingRuleTest, ShapesThatDoNotBroadcastAreADefect) {
  EXPECT_THROW(BroadcastRule(Types({{2, 3}, {2, 4}})), Error);
}

}  // namespace
}  // namespace weft
