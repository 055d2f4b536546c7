#include "ops/indexing/gather.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"

namespace weft {
namespace {

// `other` is the operand that the index goes with, which may differ from it in dim `dim`, unless `all`.
void RequireIndex(absl::string_view op, const TensorType& index, absl::string_view name,
                  const TensorType& other, int dim, bool all) {
  WEFT_REQUIRE(index.dtype == DType::kI32 || index.dtype == DType::kI64, op,
               ": the index must be i32 or i64, got ", index.ToString());
  WEFT_REQUIRE(dim >= 0 && dim < other.ndim(), op, ": there is no dim ", dim, " in ", other.ToString());
  Shape expected = other.shape;
  if (!all && index.ndim() == other.ndim()) expected[dim] = index.shape[dim];
  WEFT_REQUIRE(index.shape == expected, op, ": the index must have the shape of ", name,
               all ? "" : absl::StrCat(" but for dim ", dim), "; index is ", index.ToString(), ", ", name,
               " is ", other.ToString());
}

TensorTypes InferGather(absl::Span<const TensorType> operands, const GatherAttributes& a) {
  RequireIndex("gather", operands[1], "x", operands[0], a.dim, /*all=*/false);
  return {{operands[0].dtype, operands[1].shape}};
}

std::string RuleGather(absl::Span<const TensorType> operands, const GatherAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string index = DimFactors(ndim, a.dim, "i");
  return absl::StrCat(DimFactors(ndim, a.dim, "s@"), ", ", index, " -> ", index);
}

void BackwardGather(GradContext<GatherAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const int dim = ctx.attributes().dim;
  ctx.SetGrad(0, ctx.EmitLike(0, kScatterSum, {ctx.saved("index"), ctx.grad()},
                              {.dim = dim, .extent = ctx.operand_type(0).shape[dim]}));
}

TensorTypes InferScatter(absl::Span<const TensorType> operands, const ScatterSumAttributes& a) {
  const TensorType& src = operands[1];
  RequireIndex("scatter_sum", operands[0], "src", src, a.dim, /*all=*/true);
  WEFT_REQUIRE(src.dtype != DType::kU8 && src.dtype != DType::kBool, "scatter_sum: cannot add ",
               src.ToString());
  WEFT_REQUIRE(a.extent >= 0, "scatter_sum: the extent must not be negative, got ", a.extent);
  TensorType y = src;
  y.shape[a.dim] = a.extent;
  return {y};
}

std::string RuleScatter(absl::Span<const TensorType> operands, const ScatterSumAttributes& a) {
  const int ndim = operands[1].ndim();
  const std::string index = DimFactors(ndim, a.dim, "i");
  return absl::StrCat(index, ", ", index, " -> ", DimFactors(ndim, a.dim, "s"));
}

void BackwardScatter(GradContext<ScatterSumAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(1)) return;
  ctx.SetGrad(1, ctx.Emit(kGather, {ctx.grad(), ctx.saved("index")}, {.dim = ctx.attributes().dim}));
}

std::vector<Sample<GatherAttributes>> GatherSamples() {
  return {{{{{DType::kF32, {3, 5, 2}}}, {{DType::kI64, {3, 4, 2}}, 0, 5}}, {.dim = 1}},
          {{{{DType::kF32, {3}}}, {{DType::kI32, {5}}, 0, 3}}, {.dim = 0}},
          {{{{DType::kBool, {2, 4}}, 0, 2}, {{DType::kI64, {2, 3}}, 0, 4}}, {.dim = 1}},
          {{{{DType::kI64, {4, 2}}, -9, 9}, {{DType::kI32, {0, 2}}, 0, 4}}, {.dim = 0}}};
}

std::vector<Sample<ScatterSumAttributes>> ScatterSamples() {
  return {
      {{{{DType::kI64, {3, 4, 2}}, 0, 5}, {{DType::kF32, {3, 4, 2}}}}, {.dim = 1, .extent = 5}},
      {{{{DType::kI32, {7}}, 0, 3}, {{DType::kF32, {7}}}}, {.dim = 0, .extent = 3}},
      {{{{DType::kI64, {2, 3}}, 0, 4}, {{DType::kI64, {2, 3}}, -9, 9}}, {.dim = 1, .extent = 4}},
      {{{{DType::kI64, {0, 2}}, 0, 4}, {{DType::kF32, {0, 2}}}}, {.dim = 0, .extent = 4}},
      {{{{DType::kI64, {4, 2}}, 0, 5}, {{DType::kF32, {4, 2}}}}, {.dim = 0, .extent = 5, .to_add = true}}};
}

}  // namespace

constinit const Op<GatherAttributes> kGather = {{
    .name = "gather",
    .operands = "x index",
    .infer = InferGather,
    .rule = RuleGather,
    .linear = "{x}",
    .saves = "index",
    .backward = BackwardGather,
    .samples = GatherSamples,
}};
constinit const Op<ScatterSumAttributes> kScatterSum = {{
    .name = "scatter_sum",
    .operands = "index src",
    .infer = InferScatter,
    .rule = RuleScatter,
    .linear = "{src}",
    .saves = "index",
    .backward = BackwardScatter,
    .samples = ScatterSamples,
}};

}  // namespace weft
