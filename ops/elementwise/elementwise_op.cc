#include "ops/elementwise/elementwise_op.h"

#include <algorithm>

namespace weft {
namespace {

void RequireOneDType(absl::string_view op, absl::Span<const TensorType> operands) {
  for (const TensorType& operand : operands) {
    WEFT_REQUIRE(operand.dtype == operands[0].dtype, op, ": expected operands of one dtype, got ",
                 operands[0].ToString(), " and ", operand.ToString());
  }
}

}  // namespace

void RequireDType(absl::string_view op, const TensorType& type, Admits admits) {
  const bool numeric = IsFloating(type.dtype) || type.dtype == DType::kI32 || type.dtype == DType::kI64;
  switch (admits) {
    case Admits::kFloating:
      WEFT_REQUIRE(IsFloating(type.dtype), op, ": expected a floating dtype, got ", type.ToString());
      return;
    case Admits::kNumeric:
      WEFT_REQUIRE(numeric, op, ": expected a floating, i32 or i64 dtype, got ", type.ToString());
      return;
    case Admits::kBool:
      WEFT_REQUIRE(type.dtype == DType::kBool, op, ": expected bool, got ", type.ToString());
      return;
    case Admits::kAny:
      return;
  }
}

Shape BroadcastShape(absl::string_view op, absl::Span<const TensorType> operands) {
  TensorType common = operands[0];
  for (const TensorType& operand : operands.subspan(1)) {
    TensorType longer = common.ndim() >= operand.ndim() ? common : operand;
    const TensorType& shorter = common.ndim() >= operand.ndim() ? operand : common;
    const int shift = longer.ndim() - shorter.ndim();
    for (int dim = 0; dim < shorter.ndim(); ++dim) {
      const int64_t extent = shorter.shape[dim];
      int64_t& result = longer.shape[shift + dim];
      WEFT_REQUIRE(extent == result || extent == 1 || result == 1, op, ": ", common.ToString(), " and ",
                   operand.ToString(), " do not broadcast: counted from the last, their dim ",
                   shorter.ndim() - 1 - dim, " is neither equal nor 1");
      if (result == 1) result = extent;
    }
    common.shape = longer.shape;
  }
  return common.shape;
}

TensorType BroadcastType(absl::string_view op, absl::Span<const TensorType> operands, Admits admits) {
  RequireOneDType(op, operands);
  RequireDType(op, operands[0], admits);
  return {operands[0].dtype, BroadcastShape(op, operands)};
}

TensorType SameType(absl::string_view op, absl::Span<const TensorType> operands, Admits admits) {
  for (const TensorType& operand : operands) {
    RequireDType(op, operand, admits);
    WEFT_REQUIRE(operand == operands[0], op, ": expected operands of one type, got ", operands[0].ToString(),
                 " and ", operand.ToString());
  }
  return operands[0];
}

std::vector<std::pair<Shape, Shape>> BroadcastSampleShapes() {
  return {{{3, 5}, {3, 5}},    {{2, 3, 5}, {5}}, {{3, 4}, {}},
          {{4, 1, 3}, {5, 1}}, {{1, 5}, {1, 5}}, {{1}, {7}}};
}

std::vector<Sample<>> BinarySamples(const SampleOperand& a, const SampleOperand& b) {
  std::vector<Sample<>> samples;
  for (const auto& [a_shape, b_shape] : BroadcastSampleShapes()) {
    samples.push_back({.operands = {a, b}});
    samples.back().operands[0].type.shape = a_shape;
    samples.back().operands[1].type.shape = b_shape;
  }
  return samples;
}

}  // namespace weft
