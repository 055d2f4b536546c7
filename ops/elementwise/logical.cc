#include "ops/elementwise/logical.h"

#include "ops/elementwise/elementwise_op.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

template <const char* kName>
TensorTypes Infer(Operands operands, const NoAttributes&) {
  return {BroadcastType(kName, operands, Admits::kBool)};
}

std::vector<Sample<>> BinaryLogicSamples() {
  const SampleOperand operand = {.type = {DType::kBool, {}}, .low = 0, .high = 2};
  return BinarySamples(operand, operand);
}

std::vector<Sample<>> NotSamples() { return SameSamples(1, 0, 2, NoAttributes(), NoScalars(), DType::kBool); }

template <const char* kName>
constexpr OpFunctions<> BinaryLogic() {
  return {.name = kName,
          .operands = "a b",
          .infer = Infer<kName>,
          .rule = RuleBroadcast,
          .samples = BinaryLogicSamples};
}

constexpr char kAndName[] = "logical_and";
constexpr char kOrName[] = "logical_or";
constexpr char kXorName[] = "logical_xor";
constexpr char kNotName[] = "logical_not";

}  // namespace

constinit const Op<> kLogicalAnd = {BinaryLogic<kAndName>()};
constinit const Op<> kLogicalOr = {BinaryLogic<kOrName>()};
constinit const Op<> kLogicalXor = {BinaryLogic<kXorName>()};
constinit const Op<> kLogicalNot = {
    {.name = kNotName, .operands = "x", .infer = Infer<kNotName>, .rule = RuleSame, .samples = NotSamples}};

}  // namespace weft
