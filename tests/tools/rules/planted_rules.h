#ifndef WEFT_TESTS_TOOLS_RULES_PLANTED_RULES_H_
#define WEFT_TESTS_TOOLS_RULES_PLANTED_RULES_H_

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/op/kernel.h"
#include "tests/ops/toy_ops.h"
#include "tools/rules/rule_check.h"

namespace weft {

// What tests need that plant wrong rules: ops that differ from a toy op in one line, and what must be found.

// The parts of a toy op.
template <const Op<>& toy>
TensorTypes InferOf(absl::Span<const TensorType> types, const NoAttributes& none) {
  return toy.Infer(types, &none);
}
template <const Op<>& toy>
std::string RuleOf(absl::Span<const TensorType> types, const NoAttributes& none) {
  return toy.Rule(types, &none);
}
template <const Op<>& toy>
void KernelOf(const KernelCall<NoAttributes, NoScalars>& call) {
  toy.Invoke(FindKernel(toy, DeviceType::kCpu), call);
}
template <const Op<>& toy>
std::vector<Sample<>> SamplesOf() {
  std::vector<Sample<>> samples;
  for (const OpSample& sample : toy.Samples()) samples.push_back({.operands = sample.operands});
  return samples;
}

// The rule "b d -> b d" and its like, as a function: Fixed<"b d -> b d">.
template <size_t length>
struct PlantedRuleText {
  char text[length] = {};
  constexpr PlantedRuleText(const char (&from)[length]) { std::copy(from, from + length, text); }
};
template <PlantedRuleText rule>
std::string Fixed(absl::Span<const TensorType>, const NoAttributes&) {
  return rule.text;
}

struct Planted {
  const OpDef* op;
  const char* check;     // the first check that can see it
  const char* strategy;  // what it must be caught at
  const char* difference;
};

inline void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.op->name(); }

inline void ExpectCaught(const Planted& planted) {
  const RuleReport report = CheckOp(*planted.op);
  ASSERT_FALSE(report.wrong.empty()) << planted.op->name() << " passed";
  EXPECT_EQ(report.wrong[0].check, planted.check);
  EXPECT_THAT(report.wrong[0].strategy, ::testing::HasSubstr(planted.strategy));
  EXPECT_THAT(report.wrong[0].difference, ::testing::HasSubstr(planted.difference));
  EXPECT_EQ(report.wrong[0].op, planted.op->name());
}

}  // namespace weft

#endif  // WEFT_TESTS_TOOLS_RULES_PLANTED_RULES_H_
