#include "ops/indexing/index_select.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"

namespace weft {
namespace {

void RequireIndexAndDim(absl::string_view op, const TensorType& index, const TensorType& x, int dim) {
  WEFT_REQUIRE((index.dtype == DType::kI32 || index.dtype == DType::kI64) && index.ndim() == 1, op,
               ": the index must be i32 or i64, of one dim, got ", index.ToString());
  WEFT_REQUIRE(dim >= 0 && dim < x.ndim(), op, ": there is no dim ", dim, " in ", x.ToString());
}

TensorTypes InferSelect(absl::Span<const TensorType> operands, const IndexAttributes& a) {
  RequireIndexAndDim("index_select", operands[1], operands[0], a.dim);
  TensorType y = operands[0];
  y.shape[a.dim] = operands[1].shape[0];
  return {y};
}

std::string RuleSelect(absl::Span<const TensorType> operands, const IndexAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(DimFactors(ndim, a.dim, "s@"), ", i -> ", DimFactors(ndim, a.dim, "i"));
}

void BackwardSelect(GradContext<IndexAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const int dim = ctx.attributes().dim;
  ctx.SetGrad(0, ctx.EmitLike(0, kIndexAdd, {ctx.saved("index"), ctx.grad()},
                              {.dim = dim, .extent = ctx.operand_type(0).shape[dim]}));
}

TensorTypes InferAdd(absl::Span<const TensorType> operands, const IndexAddAttributes& a) {
  const TensorType& index = operands[0];
  const TensorType& src = operands[1];
  RequireIndexAndDim("index_add", index, src, a.dim);
  WEFT_REQUIRE(src.dtype != DType::kU8 && src.dtype != DType::kBool, "index_add: cannot add ",
               src.ToString());
  WEFT_REQUIRE(src.shape[a.dim] == index.shape[0], "index_add: expected an index for each of the ",
               src.shape[a.dim], " along dim ", a.dim, " of ", src.ToString(), ", got ", index.ToString());
  WEFT_REQUIRE(a.extent >= 0, "index_add: the extent must not be negative, got ", a.extent);
  TensorType y = src;
  y.shape[a.dim] = a.extent;
  return {y};
}

std::string RuleAdd(absl::Span<const TensorType> operands, const IndexAddAttributes& a) {
  const int ndim = operands[1].ndim();
  return absl::StrCat("i, ", DimFactors(ndim, a.dim, "i"), " -> ", DimFactors(ndim, a.dim, "s"));
}

void BackwardAdd(GradContext<IndexAddAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(1)) return;
  ctx.SetGrad(1, ctx.Emit(kIndexSelect, {ctx.grad(), ctx.saved("index")}, {.dim = ctx.attributes().dim}));
}

TensorTypes InferZero(absl::Span<const TensorType> operands, const IndexZeroAttributes& a) {
  RequireIndexAndDim("index_zero", operands[1], operands[0], a.dim);
  return {operands[0]};
}

std::string RuleZero(absl::Span<const TensorType> operands, const IndexZeroAttributes& a) {
  const std::string x = DimFactors(operands[0].ndim(), a.dim, "s");
  return absl::StrCat(x, ", i! -> ", x);
}

void BackwardZero(GradContext<IndexZeroAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.Emit(kIndexZero, {ctx.grad(), ctx.saved("index")}, {.dim = ctx.attributes().dim}));
}

std::vector<Sample<IndexAttributes>> SelectSamples() {
  return {{{{{DType::kF32, {3, 5, 2}}}, {{DType::kI64, {4}}, 0, 5}}, {.dim = 1}},
          {{{{DType::kF32, {3}}}, {{DType::kI32, {5}}, 0, 3}}, {.dim = 0}},
          {{{{DType::kI32, {2, 4}}, -9, 9}, {{DType::kI64, {3}}, 0, 4}}, {.dim = 1}},
          {{{{DType::kBool, {4, 2}}, 0, 2}, {{DType::kI64, {3}}, 0, 4}}, {.dim = 0}},
          {{{{DType::kF32, {3, 2}}}, {{DType::kI64, {0}}, 0, 3}}, {.dim = 0}}};
}

std::vector<Sample<IndexAddAttributes>> AddSamples() {
  return {{{{{DType::kI64, {4}}, 0, 5}, {{DType::kF32, {3, 4, 2}}}}, {.dim = 1, .extent = 5}},
          {{{{DType::kI32, {7}}, 0, 3}, {{DType::kF32, {7}}}}, {.dim = 0, .extent = 3}},
          {{{{DType::kI64, {3}}, 0, 4}, {{DType::kI32, {2, 3}}, -9, 9}}, {.dim = 1, .extent = 4}},
          {{{{DType::kI64, {0}}, 0, 4}, {{DType::kF32, {0, 2}}}}, {.dim = 0, .extent = 4}},
          {{{{DType::kI64, {4}}, 0, 5}, {{DType::kF32, {4, 2}}}}, {.dim = 0, .extent = 5, .to_add = true}}};
}

// Few indices, so that none comes twice.
std::vector<Sample<IndexZeroAttributes>> ZeroSamples() {
  return {{{{{DType::kF32, {3, 5, 2}}}, {{DType::kI64, {1}}, 0, 5}}, {.dim = 1}},
          {{{{DType::kI32, {4}}, -9, 9}, {{DType::kI32, {1}}, 2, 3}}, {.dim = 0}},
          {{{{DType::kF32, {3, 2}}}, {{DType::kI64, {0}}, 0, 3}}, {.dim = 0}},
          {{{{DType::kF32, {3, 2}}}, {{DType::kI64, {1}}, 0, 3}}, {.dim = 0, .to_add = true}}};
}

}  // namespace

constinit const Op<IndexAttributes> kIndexSelect = {{
    .name = "index_select",
    .operands = "x index",
    .infer = InferSelect,
    .rule = RuleSelect,
    .linear = "{x}",
    .saves = "index",
    .backward = BackwardSelect,
    .samples = SelectSamples,
}};
constinit const Op<IndexAddAttributes> kIndexAdd = {{
    .name = "index_add",
    .operands = "index src",
    .infer = InferAdd,
    .rule = RuleAdd,
    .linear = "{src}",
    .saves = "index",
    .backward = BackwardAdd,
    .samples = AddSamples,
}};
constinit const Op<IndexZeroAttributes> kIndexZero = {{
    .name = "index_zero",
    .operands = "x index",
    .infer = InferZero,
    .rule = RuleZero,
    .linear = "{x}",
    .saves = "index",
    .backward = BackwardZero,
    .samples = ZeroSamples,
}};

}  // namespace weft
