#include "ops/optimizer/block_quantize.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

// "f0 f1 f2" of x, and "f0 b!" of its scales.
std::string ElementFactors(int ndim) {
  std::string text;
  for (int dim = 0; dim < ndim; ++dim) absl::StrAppend(&text, dim > 0 ? " " : "", "f", dim);
  return text;
}
std::string ScaleFactors(int ndim) { return ndim > 1 ? "f0 b!" : "b!"; }

void RequireElements(const char* op, const char* name, const TensorType& x) {
  WEFT_REQUIRE(x.ndim() >= 1 && IsFloating(x.dtype), op, ": expected ", name,
               " of a floating dtype and at least one dim, got ", x.ToString());
}

void RequireCodes(const char* op, const TensorType& q) {
  WEFT_REQUIRE(q.ndim() >= 1 && q.dtype == DType::kU8, op, ": expected q of u8 and at least one dim, got ",
               q.ToString());
}

void RequireScales(const char* op, const char* name, const TensorType& a, const Shape& elements) {
  const TensorType expected = {DType::kF32, BlockScalesShape(elements)};
  WEFT_REQUIRE(a == expected, op, ": expected ", name, ", the scales of ", elements.ToString(), ", ",
               expected.ToString(), ", got ", a.ToString());
}

TensorTypes InferDequantize(Operands operands, const DequantizeAttributes& attributes) {
  RequireCodes("dequantize_blocks", operands[0]);
  RequireScales("dequantize_blocks", "a", operands[1], operands[0].shape);
  WEFT_REQUIRE(IsFloating(attributes.dtype), "dequantize_blocks: expected a floating dtype, got ",
               DTypeName(attributes.dtype));
  return {{attributes.dtype, operands[0].shape}};
}

std::string RuleDequantize(Operands operands, const DequantizeAttributes&) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(ElementFactors(ndim), ", ", ScaleFactors(ndim), " -> ", ElementFactors(ndim));
}

TensorTypes InferMagnitudes(Operands operands, const NoAttributes&) {
  RequireElements("block_magnitudes", "x", operands[0]);
  return {{DType::kF32, BlockScalesShape(operands[0].shape)}};
}

std::string RuleMagnitudes(Operands operands, const NoAttributes&) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(ElementFactors(ndim), " -> max: ", ScaleFactors(ndim));
}

TensorTypes InferQuantize(Operands operands, const QuantizeAttributes&) {
  constexpr const char* kName = "quantize_blocks";
  const TensorType& q = operands[0];
  const TensorType& x = operands[2];
  const TensorType& s = operands[4];
  RequireCodes(kName, q);
  RequireScales(kName, "a", operands[1], q.shape);
  RequireElements(kName, "x", x);
  WEFT_REQUIRE(x.shape == q.shape, kName, ": expected x of q's shape ", q.shape.ToString(), ", got ",
               x.ToString());
  RequireScales(kName, "new", operands[3], q.shape);
  WEFT_REQUIRE(s.ndim() == 0 && (s.dtype == DType::kF32 || s.dtype == DType::kF64), kName,
               ": expected s a scalar of f32 or f64, got ", s.ToString());
  return {q, operands[1]};
}

// The scales are made of scales alone, so splitting what they lack leaves them as they are.
std::string RuleQuantize(Operands operands, const QuantizeAttributes&) {
  const int ndim = operands[0].ndim();
  const std::string x = ElementFactors(ndim);
  const std::string a = ScaleFactors(ndim);
  return absl::StrCat(x, ", ", a, ", ", x, ", ", a, ", () -> ", x, ", ", a, " {1 3 4}");
}

const Shape kSampleShapes[] = {{3, 300}, {2, 4, 130}, {520}, {2, 3}, {1}};

SampleOperand Of(DType dtype, const Shape& shape, double low, double high) {
  return {.type = {dtype, shape}, .low = low, .high = high};
}

std::vector<Sample<DequantizeAttributes>> DequantizeSamples() {
  std::vector<Sample<DequantizeAttributes>> samples;
  for (const Shape& shape : kSampleShapes) {
    samples.push_back(
        {.operands = {Of(DType::kU8, shape, 0, 256), Of(DType::kF32, BlockScalesShape(shape), 0.5, 2)},
         .attributes = {.is_signed = shape.ndim() > 1}});
  }
  return samples;
}

std::vector<Sample<>> MagnitudesSamples() {
  std::vector<Sample<>> samples;
  for (const Shape& shape : kSampleShapes) samples.push_back({.operands = {Of(DType::kF32, shape, -1, 1)}});
  return samples;
}

std::vector<Sample<QuantizeAttributes>> QuantizeSamples() {
  std::vector<Sample<QuantizeAttributes>> samples;
  for (const Shape& shape : kSampleShapes) {
    const SampleOperand scales = Of(DType::kF32, BlockScalesShape(shape), 0.5, 2);
    samples.push_back({.operands = {Of(DType::kU8, shape, 0, 256), scales, Of(DType::kF32, shape, -1, 1),
                                    scales, Of(DType::kF32, {}, 0.5, 1)},
                       .attributes = {.is_signed = shape.ndim() > 1}});
  }
  return samples;
}

}  // namespace

Shape BlockScalesShape(const Shape& x) {
  int64_t row = 1;
  for (int dim = x.ndim() > 1 ? 1 : 0; dim < x.ndim(); ++dim) row *= x[dim];
  const int64_t blocks = (row + kBlockElements - 1) / kBlockElements;
  return x.ndim() > 1 ? Shape{x[0], blocks} : Shape{blocks};
}

constinit const Op<DequantizeAttributes> kDequantizeBlocks = {{
    .name = "dequantize_blocks",
    .operands = "q a",
    .outputs = "x",
    .infer = InferDequantize,
    .rule = RuleDequantize,
    .samples = DequantizeSamples,
}};
constinit const Op<> kBlockMagnitudes = {{
    .name = "block_magnitudes",
    .operands = "x",
    .outputs = "a",
    .infer = InferMagnitudes,
    .rule = RuleMagnitudes,
    .samples = MagnitudesSamples,
}};
constinit const Op<QuantizeAttributes> kQuantizeBlocks = {{
    .name = "quantize_blocks",
    .operands = "q a x new s",
    .outputs = "q a",
    .infer = InferQuantize,
    .rule = RuleQuantize,
    .in_place = "q a",
    .samples = QuantizeSamples,
}};

}  // namespace weft
