#include "ops/indexing/sort.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"
#include "ops/declare/row_op.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

TensorTypes Infer(Operands operands, const SortAttributes& a) {
  const TensorType& x = operands[0];
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), "sort: there is no dim ", a.dim, " in ", x.ToString());
  return {x, {DType::kI64, x.shape}};
}

std::string Rule(Operands operands, const SortAttributes& a) {
  const std::string x = DimFactors(operands[0].ndim(), a.dim, "n!");
  return absl::StrCat(x, " -> ", x, ", ", x);
}

void Backward(GradContext<SortAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const int dim = ctx.attributes().dim;
  ctx.SetGrad(0, ctx.EmitLike(0, kSelectionGrad, {ctx.saved("indices"), ctx.grad()},
                              {.dim = dim, .extent = ctx.operand_type(0).shape[dim]}));
}

TensorTypes InferSelection(Operands operands, const SelectionAttributes& a) {
  TensorType dx = operands[1];
  WEFT_REQUIRE(IsFloating(dx.dtype), "selection_grad: dy must be floating, got ", dx.ToString());
  RequireType("selection_grad", "indices", operands[0], {DType::kI64, dx.shape});
  WEFT_REQUIRE(a.dim >= 0 && a.dim < dx.ndim(), "selection_grad: there is no dim ", a.dim, " in ",
               dx.ToString());
  WEFT_REQUIRE(a.extent >= 0, "selection_grad: the extent must not be negative, got ", a.extent);
  dx.shape[a.dim] = a.extent;
  return {dx};
}

std::string RuleSelection(Operands operands, const SelectionAttributes& a) {
  const int ndim = operands[1].ndim();
  const std::string dy = DimFactors(ndim, a.dim, "k");
  return absl::StrCat(dy, ", ", dy, " -> ", DimFactors(ndim, a.dim, "n"));
}

std::vector<Sample<SortAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 5, 3}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kF32, {3, 4}}}}, .attributes = {.dim = 1, .descending = true}},
          {.operands = {{{DType::kI32, {6, 2}}, 0, 4}}, .attributes = {.dim = 0}},
          {.operands = {{{DType::kF32, {1}}}}, .attributes = {.dim = 0}}};
}

std::vector<Sample<SelectionAttributes>> SelectionSamples() {
  return {{.operands = {{{DType::kI64, {2, 3, 4}}, 0, 5}, {{DType::kF32, {2, 3, 4}}}},
           .attributes = {.dim = 1, .extent = 5}},
          {.operands = {{{DType::kI64, {6}}, 0, 2}, {{DType::kF32, {6}}}},
           .attributes = {.dim = 0, .extent = 2}}};
}

}  // namespace

constinit const Op<SortAttributes> kSort = {{
    .name = "sort",
    .operands = "x",
    .outputs = "values indices",
    .infer = Infer,
    .rule = Rule,
    .saves = "indices",
    .backward = Backward,
    .samples = Samples,
}};
constinit const Op<SelectionAttributes> kSelectionGrad = {{
    .name = "selection_grad",
    .operands = "indices dy",
    .outputs = "dx",
    .infer = InferSelection,
    .rule = RuleSelection,
    .linear = "{dy}",
    .samples = SelectionSamples,
}};

}  // namespace weft
