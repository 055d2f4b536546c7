#include "ops/elementwise/broadcast.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

TensorTypes InferSum(Operands operands, const ReduceAttributes& attributes) {
  RequireNumeric("sum", operands[0], /*floating=*/false);
  return {ReducedType("sum", operands[0], attributes)};
}

void BackwardSum(GradContext<ReduceAttributes, NoScalars>& context) {
  if (!context.Wants(0)) return;
  const ReduceAttributes& attributes = context.attributes();
  context.SetGrad(0, context.EmitLike(0, kBroadcastTo, {context.grad()},
                                      {.shape = context.operand_type(0).shape,
                                       .missing_dims = attributes.keepdims ? 0 : attributes.dims}));
}

TensorTypes InferSumTo(Operands operands, const ShapeAttributes& attributes) {
  const TensorType& x = operands[0];
  RequireNumeric("sum_to", x, /*floating=*/false);
  const int leading = x.ndim() - attributes.shape.ndim();
  bool fits = leading >= 0;
  for (int dim = 0; fits && dim < attributes.shape.ndim(); ++dim) {
    fits = attributes.shape[dim] == 1 || attributes.shape[dim] == x.shape[leading + dim];
  }
  WEFT_REQUIRE(fits, "sum_to: ", x.ToString(), " is no broadcast of ", attributes.shape.ToString());
  return {{x.dtype, attributes.shape}};
}

std::string RuleSumTo(Operands operands, const ShapeAttributes& attributes) {
  const int leading = operands[0].ndim() - attributes.shape.ndim();
  std::vector<std::string> kept;
  for (int dim = 0; dim < attributes.shape.ndim(); ++dim) {
    const bool equal = attributes.shape[dim] == operands[0].shape[leading + dim];
    kept.push_back(equal ? FactorName(leading + dim) : "1");
  }
  return absl::StrCat(AllFactors(operands[0].ndim()), " -> ", DimsText(kept));
}

void BackwardSumTo(GradContext<ShapeAttributes, NoScalars>& context) {
  if (!context.Wants(0)) return;
  const Shape& shape = context.operand_type(0).shape;
  const DimMask leading = AllDims(shape.ndim() - context.attributes().shape.ndim());
  context.SetGrad(
      0, context.EmitLike(0, kBroadcastTo, {context.grad()}, {.shape = shape, .missing_dims = leading}));
}

TensorTypes InferBroadcastTo(Operands operands, const BroadcastAttributes& attributes) {
  const TensorType& x = operands[0];
  bool fits = attributes.missing_dims <= AllDims(attributes.shape.ndim());
  int x_dim = 0;
  for (int dim = 0; dim < attributes.shape.ndim() && fits; ++dim) {
    if (HasDim(attributes.missing_dims, dim)) continue;
    fits = x_dim < x.ndim() && (x.shape[x_dim] == 1 || x.shape[x_dim] == attributes.shape[dim]);
    ++x_dim;
  }
  WEFT_REQUIRE(fits && x_dim == x.ndim(), "broadcast_to: ", x.ToString(), " does not broadcast to ",
               attributes.shape.ToString(), " without the missing dims");
  return {{x.dtype, attributes.shape}};
}

// Factors of the output, and of the operand: "1" where it is repeated.
std::string RuleBroadcastTo(Operands operands, const BroadcastAttributes& attributes) {
  std::vector<std::string> from;
  for (int dim = 0; dim < attributes.shape.ndim(); ++dim) {
    if (HasDim(attributes.missing_dims, dim)) continue;
    const bool equal = operands[0].shape[static_cast<int>(from.size())] == attributes.shape[dim];
    from.push_back(equal ? FactorName(dim) : "1");
  }
  return absl::StrCat(DimsText(from), " -> ", AllFactors(attributes.shape.ndim()));
}

void BackwardBroadcastTo(GradContext<BroadcastAttributes, NoScalars>& context) {
  if (!context.Wants(0)) return;
  const BroadcastAttributes& attributes = context.attributes();
  const Shape& from = context.operand_type(0).shape;
  // Dims of extent 1 first, kept as 1; then the missing ones go.
  DimMask repeated = 0;
  int x_dim = 0;
  for (int dim = 0; dim < attributes.shape.ndim(); ++dim) {
    if (HasDim(attributes.missing_dims, dim)) continue;
    if (from[x_dim] != attributes.shape[dim]) repeated |= DimMaskOf({dim});
    ++x_dim;
  }
  Value gradient = context.grad();
  if (repeated != 0) gradient = context.Emit(kSum, {gradient}, {.dims = repeated, .keepdims = true});
  if (attributes.missing_dims != 0)
    gradient = context.Emit(kSum, {gradient}, {.dims = attributes.missing_dims});
  context.SetGrad(0, gradient);
}

SampleOperand F32(const Shape& shape) { return {.type = {DType::kF32, shape}}; }

std::vector<Sample<ReduceAttributes>> SumSamples() {
  return {{.operands = {F32({3, 5})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({3, 5})}, .attributes = {.dims = DimMaskOf({0}), .keepdims = true}},
          {.operands = {F32({2, 3, 4})}, .attributes = {.dims = DimMaskOf({0, 2})}},
          {.operands = {F32({5, 1})}, .attributes = {.dims = AllDims(2)}},
          {.operands = {F32({})}}};
}

std::vector<Sample<ShapeAttributes>> SumToSamples() {
  return {{.operands = {F32({2, 3, 5})}, .attributes = {.shape = {5}}},
          {.operands = {F32({2, 3, 5})}, .attributes = {.shape = {3, 1}}},
          {.operands = {F32({1, 5})}, .attributes = {.shape = {1, 1}}},
          {.operands = {F32({3})}, .attributes = {.shape = {}}}};
}

std::vector<Sample<BroadcastAttributes>> BroadcastSamples() {
  return {{.operands = {F32({3})}, .attributes = {.shape = {3, 5}, .missing_dims = DimMaskOf({1})}},
          {.operands = {F32({2, 1})}, .attributes = {.shape = {3, 2, 5}, .missing_dims = DimMaskOf({0})}},
          {.operands = {F32({})}, .attributes = {.shape = {1, 4}, .missing_dims = AllDims(2)}},
          {.operands = {F32({1, 5})}, .attributes = {.shape = {3, 5}}},
          {.operands = {{{DType::kBool, {3}}, 0, 2}},
           .attributes = {.shape = {4, 3}, .missing_dims = DimMaskOf({0})}}};
}

}  // namespace

std::string SumRule(absl::Span<const TensorType> operands, const ReduceAttributes& attributes) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim), " -> ", KeptFactors(ndim, attributes));
}

constinit const Op<ReduceAttributes> kSum = {{
    .name = "sum",
    .operands = "x",
    .infer = InferSum,
    .rule = SumRule,
    .linear = "{x}",
    .backward = BackwardSum,
    .samples = SumSamples,
}};
constinit const Op<ShapeAttributes> kSumTo = {{
    .name = "sum_to",
    .operands = "x",
    .infer = InferSumTo,
    .rule = RuleSumTo,
    .linear = "{x}",
    .backward = BackwardSumTo,
    .samples = SumToSamples,
}};
constinit const Op<BroadcastAttributes> kBroadcastTo = {{
    .name = "broadcast_to",
    .operands = "x",
    .infer = InferBroadcastTo,
    .rule = RuleBroadcastTo,
    .linear = "{x}",
    .backward = BackwardBroadcastTo,
    .samples = BroadcastSamples,
}};

}  // namespace weft
