#include "ops/op/op.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/sharding/sharding_rule.h"
#include "runtime/base/error.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TensorTypes Same(absl::Span<const TensorType> types, const NoAttributes&) { return {types[0]}; }
std::string Rule(absl::Span<const TensorType> types, const NoAttributes&) {
  return ElementwiseRule(static_cast<int>(types.size()), 1, types[0].ndim());
}

Op<> WithLinear(const char* operands, const char* linear) {
  return {{.name = "broken", .operands = operands, .infer = Same, .rule = Rule, .linear = linear}};
}

std::string MessageOf(const OpDef& op, int num_operands) {
  try {
    op.LinearGroups(num_operands);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInternal);
    return error.message();
  }
  return "";
}

TEST(OpTest, ValuesAreNumberedOperandsFirst) {
  EXPECT_EQ(kToyLinear.FindValue("x"), 0);
  EXPECT_EQ(kToyLinear.FindValue("b"), 2);
  EXPECT_EQ(kToyLinear.FindValue("y"), 3);
  EXPECT_EQ(kToyMoments.FindValue("squares"), 2);
  EXPECT_EQ(kToyLinear.FindValue("z"), -1);
  EXPECT_EQ(kToyLinear.FindValue(""), -1);
  EXPECT_EQ(kToySgd.FindValue("p"), 0) << "an in-place operand before the output of the same name";
}

TEST(OpTest, LinearGroupsAreOperandNumbers) {
  using Groups = std::vector<std::vector<int>>;
  EXPECT_EQ(kToyMatmul.LinearGroups(2), (Groups{{0}, {1}}));
  EXPECT_EQ(kToyLinear.LinearGroups(3), (Groups{{0, 2}, {1, 2}}));
  EXPECT_EQ(kToyRelu.LinearGroups(1), Groups{});
  EXPECT_EQ(kToySum.LinearGroups(3), (Groups{{0, 1, 2}}));
  EXPECT_EQ(WithLinear("a b", " {a}  {b} ").LinearGroups(2), (Groups{{0}, {1}}));
}

TEST(OpTest, BadLinearTextIsADefectOfTheOp) {
  EXPECT_THAT(MessageOf(WithLinear("a b", "a b"), 2), HasSubstr("linear 'a b' is no list of {groups}"));
  EXPECT_THAT(MessageOf(WithLinear("a b", "{a"), 2), HasSubstr("linear '{a' is no list of {groups}"));
  EXPECT_THAT(MessageOf(WithLinear("a b", "{c}"), 2), HasSubstr("names 'c', operands are 'a b'"));
  EXPECT_THAT(MessageOf(WithLinear("a b", "{y}"), 2), HasSubstr("names 'y', operands are 'a b'"));
  EXPECT_THAT(MessageOf(WithLinear("a b", "{}"), 2), HasSubstr("has an empty group"));
}

TEST(OpTest, AttributesAreKeysAndCopies) {
  const ToyMatmulAttributes plain;
  ToyMatmulAttributes transposed = {.transpose_w = true};
  EXPECT_TRUE(kToyMatmul.EqualAttributes(&plain, &plain));
  EXPECT_FALSE(kToyMatmul.EqualAttributes(&plain, &transposed));
  const ToyMatmulAttributes again;
  EXPECT_EQ(kToyMatmul.HashAttributes(&plain), kToyMatmul.HashAttributes(&again));
  const std::shared_ptr<const void> copy = kToyMatmul.CloneAttributes(&transposed);
  transposed.transpose_w = false;
  EXPECT_TRUE(static_cast<const ToyMatmulAttributes*>(copy.get())->transpose_w);
}

}  // namespace
}  // namespace weft
