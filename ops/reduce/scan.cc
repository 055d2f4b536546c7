#include "ops/reduce/scan.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

void RequireScannable(const char* op, const TensorType& x, const ScanAttributes& a) {
  WEFT_REQUIRE(IsFloating(x.dtype) || x.dtype == DType::kI32 || x.dtype == DType::kI64, op,
               ": expected a floating, i32 or i64 dtype, got ", x.ToString());
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), op, ": there is no dim ", a.dim, " in ", x.ToString());
}

// Totals of floats are f64, as the sum goes on within a piece: what cancels in another piece must still be there.
TensorType TotalType(TensorType x, int dim) {
  if (IsFloating(x.dtype)) x.dtype = DType::kF64;
  x.shape[dim] = 1;
  return x;
}

template <const Op<ScanAttributes>* op>
TensorTypes InferScan(Operands operands, const ScanAttributes& a) {
  RequireScannable(op->name(), operands[0], a);
  return {operands[0]};
}

std::string RuleScan(Operands operands, const ScanAttributes& a) {
  const std::string x = DimFactors(operands[0].ndim(), a.dim, "n!");
  return absl::StrCat(x, " -> ", x);
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const ScanAttributes& a,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value totals = emitter.EmitOnPieces(kPieceTotal, {x}, a.dim, PieceOutputs::kStatistic, a)[0];
  const Value offsets = emitter.Emit(kPieceOffsets, {totals}, a);
  return emitter.EmitOnPieces(kCumSumFrom, {x, offsets}, a.dim, PieceOutputs::kAligned, a);
}

void Backward(GradContext<ScanAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const ScanAttributes& a = ctx.attributes();
  ctx.SetGrad(0, ctx.Emit(kCumSum, {ctx.grad()}, {.dim = a.dim, .reverse = !a.reverse}));
}

TensorTypes InferTotal(Operands operands, const ScanAttributes& a) {
  RequireScannable("piece_total", operands[0], a);
  return {TotalType(operands[0], a.dim)};
}

std::string RuleTotal(Operands operands, const ScanAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(DimFactors(ndim, a.dim, "n"), " -> ", DimFactors(ndim, a.dim, "1"));
}

TensorTypes InferFrom(Operands operands, const ScanAttributes& a) {
  RequireScannable("cumsum_from", operands[0], a);
  RequireType("cumsum_from", "offset", operands[1], TotalType(operands[0], a.dim));
  return {operands[0]};
}

std::string RuleFrom(Operands operands, const ScanAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string x = DimFactors(ndim, a.dim, "n!");
  return absl::StrCat(x, ", ", DimFactors(ndim, a.dim, "1"), " -> ", x);
}

std::vector<Sample<ScanAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 3, 4}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kF32, {3, 5}}}}, .attributes = {.dim = 1, .reverse = true}},
          {.operands = {{{DType::kF32, {1}}}}, .attributes = {.dim = 0}},
          {.operands = {{{DType::kI32, {4, 3}}, -9, 9}}, .attributes = {.dim = 0}}};
}

std::vector<Sample<ScanAttributes>> FromSamples() {
  return {
      {.operands = {{{DType::kF32, {2, 3, 4}}}, {{DType::kF64, {2, 1, 4}}}}, .attributes = {.dim = 1}},
      {.operands = {{{DType::kF32, {5}}}, {{DType::kF64, {1}}}}, .attributes = {.dim = 0, .reverse = true}},
      {.operands = {{{DType::kI64, {5}}, -9, 9}, {{DType::kI64, {1}}, -9, 9}}, .attributes = {.dim = 0}}};
}

}  // namespace

constinit const Op<ScanAttributes> kCumSum = {{
    .name = "cumsum",
    .operands = "x",
    .infer = InferScan<&kCumSum>,
    .rule = RuleScan,
    .linear = "{x}",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<ScanAttributes> kPieceTotal = {{
    .name = "piece_total",
    .operands = "x",
    .infer = InferTotal,
    .rule = RuleTotal,
    .linear = "{x}",
    .samples = Samples,
}};
constinit const Op<ScanAttributes> kPieceOffsets = {{
    .name = "piece_offsets",
    .operands = "totals",
    .infer = InferScan<&kPieceOffsets>,
    .rule = RuleScan,
    .linear = "{totals}",
    .samples = Samples,
}};
constinit const Op<ScanAttributes> kCumSumFrom = {{
    .name = "cumsum_from",
    .operands = "x offset",
    .infer = InferFrom,
    .rule = RuleFrom,
    .linear = "{x offset}",
    .samples = FromSamples,
}};

}  // namespace weft
