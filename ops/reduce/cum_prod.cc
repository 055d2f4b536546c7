#include "ops/reduce/cum_prod.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"
#include "ops/reduce/reduce.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

void RequireScannable(const char* op, const TensorType& x, const DimAttributes& a) {
  WEFT_REQUIRE(IsFloating(x.dtype) || x.dtype == DType::kI32 || x.dtype == DType::kI64, op,
               ": expected a floating, i32 or i64 dtype, got ", x.ToString());
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), op, ": there is no dim ", a.dim, " in ", x.ToString());
}

template <const Op<DimAttributes>* op>
TensorTypes InferScan(Operands operands, const DimAttributes& a) {
  RequireScannable(op->name(), operands[0], a);
  return {operands[0]};
}

std::string RuleScan(Operands operands, const DimAttributes& a) {
  const std::string x = DimFactors(operands[0].ndim(), a.dim, "n!");
  return absl::StrCat(x, " -> ", x);
}

// Totals of floats are f64: a product of one piece may leave float's range where the whole comes back to it.
Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const DimAttributes& a,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const bool floating = IsFloating(emitter.TypeOf(x).dtype);
  const Value totals = floating
                           ? emitter.EmitOnPieces(kPieceProduct, {x}, a.dim, PieceOutputs::kStatistic, a)[0]
                           : emitter.EmitOnPieces(kProd, {x}, a.dim, PieceOutputs::kStatistic,
                                                  {.dims = DimMaskOf({a.dim}), .keepdims = true})[0];
  const Value offsets = emitter.Emit(kProductOffsets, {totals}, a);
  return emitter.EmitOnPieces(kCumProdFrom, {x, offsets}, a.dim, PieceOutputs::kAligned, a);
}

void Backward(GradContext<DimAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.Emit(kCumProdGrad, {ctx.saved("x"), ctx.grad()}, ctx.attributes()));
}

TensorTypes InferFrom(Operands operands, const DimAttributes& a) {
  const TensorType& x = operands[0];
  RequireScannable("cumprod_from", x, a);
  TensorType offset = x;
  if (IsFloating(x.dtype)) offset.dtype = DType::kF64;
  offset.shape[a.dim] = 1;
  RequireType("cumprod_from", "offset", operands[1], offset);
  return {x};
}

std::string RuleFrom(Operands operands, const DimAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string x = DimFactors(ndim, a.dim, "n!");
  return absl::StrCat(x, ", ", DimFactors(ndim, a.dim, "1"), " -> ", x);
}

TensorTypes InferGrad(Operands operands, const DimAttributes& a) {
  RequireScannable("cumprod_grad", operands[0], a);
  WEFT_REQUIRE(IsFloating(operands[0].dtype), "cumprod_grad: expected a floating dtype, got ",
               operands[0].ToString());
  RequireType("cumprod_grad", "dy", operands[1], operands[0]);
  return {operands[0]};
}

std::string RuleGrad(Operands operands, const DimAttributes& a) {
  const std::string x = DimFactors(operands[0].ndim(), a.dim, "n!");
  return absl::StrCat(x, ", ", x, " -> ", x);
}

std::vector<Sample<DimAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 3, 4}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kF32, {3, 5}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kF32, {1}}}}, .attributes = {.dim = 0}},
          {.operands = {{{DType::kI32, {4, 3}}, -5, 5}}, .attributes = {.dim = 0}},
          {.operands = {{{DType::kI64, {5}}, -5, 5}}, .attributes = {.dim = 0}}};
}

std::vector<Sample<DimAttributes>> FromSamples() {
  return {{.operands = {{{DType::kF32, {2, 3, 4}}}, {{DType::kF64, {2, 1, 4}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kI64, {5}}, -5, 5}, {{DType::kI64, {1}}, -5, 5}}, .attributes = {.dim = 0}}};
}

std::vector<Sample<DimAttributes>> GradSamples() {
  return {{.operands = {{{DType::kF32, {2, 3, 4}}}, {{DType::kF32, {2, 3, 4}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kF32, {5}}}, {{DType::kF32, {5}}}}, .attributes = {.dim = 0}}};
}

}  // namespace

constinit const Op<DimAttributes> kCumProd = {{
    .name = "cumprod",
    .operands = "x",
    .infer = InferScan<&kCumProd>,
    .rule = RuleScan,
    .saves = "x",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<DimAttributes> kProductOffsets = {{
    .name = "product_offsets",
    .operands = "totals",
    .infer = InferScan<&kProductOffsets>,
    .rule = RuleScan,
    .samples = Samples,
}};
constinit const Op<DimAttributes> kCumProdFrom = {{
    .name = "cumprod_from",
    .operands = "x offset",
    .infer = InferFrom,
    .rule = RuleFrom,
    .linear = "{offset}",
    .samples = FromSamples,
}};
constinit const Op<DimAttributes> kCumProdGrad = {{
    .name = "cumprod_grad",
    .operands = "x dy",
    .outputs = "dx",
    .infer = InferGrad,
    .rule = RuleGrad,
    .linear = "{dy}",
    .samples = GradSamples,
}};

}  // namespace weft
