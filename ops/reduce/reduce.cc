#include "ops/reduce/reduce.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/declare/reduced_dims.h"
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/cast.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/settle.h"
#include "ops/reduce/cofactor.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

TensorTypes InferMean(Operands operands, const ReduceAttributes& attributes) {
  RequireNumeric("mean", operands[0], /*floating=*/true);
  return {ReducedType("mean", operands[0], attributes)};
}

TensorTypes InferExtremum(const char* name, Operands operands, const ReduceAttributes& attributes) {
  const bool is_bool = operands[0].dtype == DType::kBool;
  if (operands[0].dtype != DType::kU8 && !is_bool) RequireNumeric(name, operands[0], /*floating=*/false);
  const TensorType result = ReducedType(name, operands[0], attributes);
  for (int dim = 0; dim < operands[0].ndim(); ++dim) {
    WEFT_REQUIRE(is_bool || !HasDim(attributes.dims, dim) || operands[0].shape[dim] > 0, name, ": dim ", dim,
                 " of ", operands[0].ToString(), " is empty and has no extremum");
  }
  return {result};
}

TensorTypes InferMax(Operands operands, const ReduceAttributes& attributes) {
  return InferExtremum("reduce_max", operands, attributes);
}

TensorTypes InferMin(Operands operands, const ReduceAttributes& attributes) {
  return InferExtremum("reduce_min", operands, attributes);
}

std::string RuleMax(Operands operands, const ReduceAttributes& attributes) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim), " -> max: ", KeptFactors(ndim, attributes));
}

std::string RuleMin(Operands operands, const ReduceAttributes& attributes) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim), " -> min: ", KeptFactors(ndim, attributes));
}

using ReduceContext = GradContext<ReduceAttributes, NoScalars>;

// Repeats a value of the output's shape along the reduced dims.
Value BroadcastBack(ReduceContext& context, Value value) {
  const ReduceAttributes& attributes = context.attributes();
  return context.EmitLike(
      0, kBroadcastTo, {value},
      {.shape = context.operand_type(0).shape, .missing_dims = attributes.keepdims ? 0 : attributes.dims});
}

Value CastTo(ReduceContext& context, Value value, DType dtype) {
  if (context.TypeOf(value).dtype == dtype) return value;
  return context.Emit(kCast, {value}, {.dtype = dtype});
}

void BackwardMean(ReduceContext& context) {
  if (!context.Wants(0)) return;
  const auto count =
      static_cast<double>(ReducedCount(context.operand_type(0).shape, context.attributes().dims));
  // Scaled before it is repeated: fewer elements.
  context.SetGrad(0,
                  BroadcastBack(context, context.Emit(kScale, {context.grad()}, {}, {.factor = 1 / count})));
}

void BackwardExtremum(ReduceContext& context) {
  if (!context.Wants(0)) return;
  const Value mask =
      context.Emit(kExtremumMask, {context.saved("x"), context.saved("y")}, context.attributes());
  const DType dtype = context.operand_type(0).dtype;
  // f16 counts no further than 65504.
  const DType count_dtype = dtype == DType::kF16 ? DType::kF32 : dtype;
  const Value ties = context.Emit(kSum, {CastTo(context, mask, count_dtype)}, context.attributes());
  const Value share = context.Emit(kDiv, {CastTo(context, context.grad(), count_dtype), ties});
  context.SetGrad(0, context.Emit(kMul, {mask, BroadcastBack(context, CastTo(context, share, dtype))}));
}

TensorTypes InferProd(Operands operands, const ReduceAttributes& attributes) {
  RequireNumeric("prod", operands[0], /*floating=*/false);
  return {ReducedType("prod", operands[0], attributes)};
}

std::string RuleProd(Operands operands, const ReduceAttributes& attributes) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim), " -> product: ", KeptFactors(ndim, attributes));
}

// dy times the product of the other elements, which y / x is not where x is 0: dim by dim, of what the dims
// before have left. In f64: that product may leave the range in which y and the gradient lie.
void BackwardProd(ReduceContext& context) {
  if (!context.Wants(0)) return;
  const ReduceAttributes& attributes = context.attributes();
  const DType dtype = context.operand_type(0).dtype;
  Shape kept = context.operand_type(0).shape;
  Value rest = CastTo(context, context.saved("x"), DType::kF64);
  std::vector<Value> cofactors;
  for (int dim = 0; dim < kept.ndim(); ++dim) {
    if (!HasDim(attributes.dims, dim)) continue;
    cofactors.push_back(context.Emit(kCofactor, {rest}, {.dim = dim}));
    kept[dim] = 1;
    const bool last = attributes.dims >> (dim + 1) == 0;
    if (last) break;
    rest = context.Emit(kProd, {rest}, {.dims = DimMaskOf({dim}), .keepdims = true});
    rest = context.Emit(kSettle, {rest});
  }
  Value gradient = CastTo(context, context.grad(), DType::kF64);
  if (!attributes.keepdims && attributes.dims != 0) {
    gradient = context.Emit(kBroadcastTo, {gradient}, {.shape = kept, .missing_dims = attributes.dims});
  }
  // The last are the smallest.
  for (size_t i = cofactors.size(); i-- > 0;) gradient = context.Emit(kMul, {gradient, cofactors[i]});
  context.SetGrad(0, CastTo(context, gradient, dtype));
}

TensorTypes InferSumSquares(Operands operands, const NoAttributes&) {
  RequireNumeric("sum_squares", operands[0], /*floating=*/true);
  return {{operands[0].dtype == DType::kF64 ? DType::kF64 : DType::kF32, {}}};
}

std::string RuleSumSquares(Operands operands, const NoAttributes&) {
  return absl::StrCat(AllFactors(operands[0].ndim()), " -> ()");
}

TensorTypes InferExtremumMask(Operands operands, const ReduceAttributes& attributes) {
  RequireNumeric("extremum_mask", operands[0], /*floating=*/false);
  const TensorType expected = ReducedType("extremum_mask", operands[0], attributes);
  WEFT_REQUIRE(operands[1] == expected, "extremum_mask: expected y of type ", expected.ToString(), ", got ",
               operands[1].ToString());
  return {operands[0]};
}

std::string RuleExtremumMask(Operands operands, const ReduceAttributes& attributes) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim), ", ", KeptFactors(ndim, attributes), " -> ", AllFactors(ndim));
}

// Constant almost everywhere.
void BackwardExtremumMask(ReduceContext&) {}

SampleOperand F32(const Shape& shape) { return {.type = {DType::kF32, shape}}; }

std::vector<Sample<ReduceAttributes>> ReduceSamples() {
  return {{.operands = {F32({3, 5})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({3, 5})}, .attributes = {.dims = DimMaskOf({0}), .keepdims = true}},
          {.operands = {F32({2, 3, 4})}, .attributes = {.dims = DimMaskOf({0, 2})}},
          {.operands = {F32({5, 1})}, .attributes = {.dims = AllDims(2)}},
          {.operands = {F32({})}}};
}

std::vector<Sample<ReduceAttributes>> ExtremumSamples() {
  std::vector<Sample<ReduceAttributes>> samples = ReduceSamples();
  samples.push_back({.operands = {{{DType::kI32, {3, 5}}, -9, 9}}, .attributes = {.dims = DimMaskOf({1})}});
  samples.push_back({.operands = {{{DType::kBool, {4, 3}}, 0, 2}}, .attributes = {.dims = DimMaskOf({0})}});
  return samples;
}

std::vector<Sample<ReduceAttributes>> ProdSamples() {
  std::vector<Sample<ReduceAttributes>> samples = ReduceSamples();
  samples.push_back({.operands = {{{DType::kI64, {3, 5}}, -4, 4}}, .attributes = {.dims = DimMaskOf({1})}});
  return samples;
}

std::vector<Sample<>> SumSquaresSamples() {
  return {{.operands = {F32({3, 5})}}, {.operands = {F32({1, 7})}}, {.operands = {F32({})}}};
}

std::vector<Sample<ReduceAttributes>> ExtremumMaskSamples() {
  // Integers, so that some are equal.
  const SampleOperand x = {.type = {DType::kI32, {3, 5}}, .low = 0, .high = 3};
  const SampleOperand y = {.type = {DType::kI32, {3}}, .low = 0, .high = 3};
  return {{.operands = {x, y}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({2, 3}), F32({1, 3})}, .attributes = {.dims = DimMaskOf({0}), .keepdims = true}}};
}

}  // namespace

constinit const Op<ReduceAttributes> kMean = {{
    .name = "mean",
    .operands = "x",
    .infer = InferMean,
    .rule = SumRule,
    .linear = "{x}",
    .backward = BackwardMean,
    .samples = ReduceSamples,
}};
constinit const Op<ReduceAttributes> kReduceMax = {{
    .name = "reduce_max",
    .operands = "x",
    .infer = InferMax,
    .rule = RuleMax,
    .saves = "x y",
    .backward = BackwardExtremum,
    .samples = ExtremumSamples,
}};
constinit const Op<ReduceAttributes> kReduceMin = {{
    .name = "reduce_min",
    .operands = "x",
    .infer = InferMin,
    .rule = RuleMin,
    .saves = "x y",
    .backward = BackwardExtremum,
    .samples = ExtremumSamples,
}};
constinit const Op<ReduceAttributes> kProd = {{
    .name = "prod",
    .operands = "x",
    .infer = InferProd,
    .rule = RuleProd,
    .saves = "x",
    .backward = BackwardProd,
    .samples = ProdSamples,
}};
constinit const Op<> kSumSquares = {{
    .name = "sum_squares",
    .operands = "x",
    .infer = InferSumSquares,
    .rule = RuleSumSquares,
    .samples = SumSquaresSamples,
}};
constinit const Op<ReduceAttributes> kExtremumMask = {{
    .name = "extremum_mask",
    .operands = "x y",
    .outputs = "mask",
    .infer = InferExtremumMask,
    .rule = RuleExtremumMask,
    .backward = BackwardExtremumMask,
    .samples = ExtremumMaskSamples,
}};

}  // namespace weft
