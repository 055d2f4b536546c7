#include "ops/reduce/cofactor.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

void RequireDim(const char* op, const TensorType& x, const DimAttributes& a) {
  WEFT_REQUIRE(IsFloating(x.dtype), op, ": expected a floating dtype, got ", x.ToString());
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), op, ": there is no dim ", a.dim, " in ", x.ToString());
}

// One f64 for the dim.
TensorType TotalType(TensorType x, int dim) {
  x.dtype = DType::kF64;
  x.shape[dim] = 1;
  return x;
}

template <const Op<DimAttributes>* op>
TensorTypes InferCofactor(Operands operands, const DimAttributes& a) {
  RequireDim(op->name(), operands[0], a);
  return {operands[0]};
}

std::string RuleCofactor(Operands operands, const DimAttributes& a) {
  const std::string x = DimFactors(operands[0].ndim(), a.dim, "n!");
  return absl::StrCat(x, " -> ", x);
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const DimAttributes& a,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value totals = emitter.EmitOnPieces(kPieceProduct, {x}, a.dim, PieceOutputs::kStatistic, a)[0];
  const Value others = emitter.Emit(kTotalsCofactor, {totals}, a);
  return emitter.EmitOnPieces(kPieceCofactor, {x, others}, a.dim, PieceOutputs::kAligned, a);
}

TensorTypes InferPieceProduct(Operands operands, const DimAttributes& a) {
  RequireDim("piece_product", operands[0], a);
  return {TotalType(operands[0], a.dim)};
}

std::string RulePieceProduct(Operands operands, const DimAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(DimFactors(ndim, a.dim, "n"), " -> product: ", DimFactors(ndim, a.dim, "1"));
}

TensorTypes InferPieceCofactor(Operands operands, const DimAttributes& a) {
  RequireDim("piece_cofactor", operands[0], a);
  RequireType("piece_cofactor", "others", operands[1], TotalType(operands[0], a.dim));
  return {operands[0]};
}

std::string RulePieceCofactor(Operands operands, const DimAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string x = DimFactors(ndim, a.dim, "n!");
  return absl::StrCat(x, ", ", DimFactors(ndim, a.dim, "1"), " -> ", x);
}

std::vector<Sample<DimAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 3, 4}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kF32, {3, 1}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kF32, {5}}}}, .attributes = {.dim = 0}}};
}

std::vector<Sample<DimAttributes>> PieceSamples() {
  return {{.operands = {{{DType::kF32, {2, 3, 4}}}, {{DType::kF64, {2, 1, 4}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kF32, {5}}}, {{DType::kF64, {1}}}}, .attributes = {.dim = 0}}};
}

}  // namespace

constinit const Op<DimAttributes> kCofactor = {{
    .name = "cofactor",
    .operands = "x",
    .infer = InferCofactor<&kCofactor>,
    .rule = RuleCofactor,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<DimAttributes> kPieceProduct = {{
    .name = "piece_product",
    .operands = "x",
    .infer = InferPieceProduct,
    .rule = RulePieceProduct,
    .samples = Samples,
}};
constinit const Op<DimAttributes> kTotalsCofactor = {{
    .name = "totals_cofactor",
    .operands = "x",
    .infer = InferCofactor<&kTotalsCofactor>,
    .rule = RuleCofactor,
    .samples = Samples,
}};
constinit const Op<DimAttributes> kPieceCofactor = {{
    .name = "piece_cofactor",
    .operands = "x others",
    .infer = InferPieceCofactor,
    .rule = RulePieceCofactor,
    .linear = "{others}",
    .samples = PieceSamples,
}};

}  // namespace weft
