#include "ops/elementwise/compare.h"

#include "ops/elementwise/elementwise_op.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

template <const char* kName>
TensorTypes InferComparison(Operands operands, const NoAttributes&) {
  return {{DType::kBool, BroadcastType(kName, operands, Admits::kAny).shape}};
}

template <const char* kName>
TensorTypes InferClass(Operands operands, const NoAttributes&) {
  return {{DType::kBool, SameType(kName, operands, Admits::kFloating).shape}};
}

// Integers, so that some are equal.
std::vector<Sample<>> ComparisonSamples() {
  std::vector<Sample<>> samples = BinarySamples({}, {});
  samples.push_back({.operands = {{{DType::kI32, {3, 5}}, 0, 3}, {{DType::kI32, {3, 1}}, 0, 3}}});
  samples.push_back({.operands = {{{DType::kBool, {2, 3}}, 0, 2}, {{DType::kBool, {2, 3}}, 0, 2}}});
  return samples;
}

std::vector<Sample<>> ClassSamples() { return SameSamples(1, -1, 1); }

template <const char* kName>
constexpr OpFunctions<> Comparison() {
  return {.name = kName,
          .operands = "a b",
          .infer = InferComparison<kName>,
          .rule = RuleBroadcast,
          .samples = ComparisonSamples};
}

template <const char* kName>
constexpr OpFunctions<> Class() {
  return {
      .name = kName, .operands = "x", .infer = InferClass<kName>, .rule = RuleSame, .samples = ClassSamples};
}

constexpr char kEqualName[] = "equal";
constexpr char kNotEqualName[] = "not_equal";
constexpr char kLessName[] = "less";
constexpr char kLessEqualName[] = "less_equal";
constexpr char kGreaterName[] = "greater";
constexpr char kGreaterEqualName[] = "greater_equal";
constexpr char kIsNanName[] = "is_nan";
constexpr char kIsFiniteName[] = "is_finite";

}  // namespace

constinit const Op<> kEqual = {Comparison<kEqualName>()};
constinit const Op<> kNotEqual = {Comparison<kNotEqualName>()};
constinit const Op<> kLess = {Comparison<kLessName>()};
constinit const Op<> kLessEqual = {Comparison<kLessEqualName>()};
constinit const Op<> kGreater = {Comparison<kGreaterName>()};
constinit const Op<> kGreaterEqual = {Comparison<kGreaterEqualName>()};
constinit const Op<> kIsNan = {Class<kIsNanName>()};
constinit const Op<> kIsFinite = {Class<kIsFiniteName>()};

}  // namespace weft
