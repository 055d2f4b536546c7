#include "ops/shape/strided_slice.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"
#include "ops/declare/row_op.h"
#include "ops/shape/slice.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

void RequirePlaces(absl::string_view op, const TensorType& x, const StridedSliceAttributes& a) {
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), op, ": there is no dim ", a.dim, " in ", x.ToString());
  WEFT_REQUIRE(a.step >= 1, op, ": the step must be positive, got ", a.step);
  const int64_t extent = x.shape[a.dim];
  const bool fits =
      a.start >= 0 && a.length >= 0 && a.start <= extent &&
      (a.length == 0 || (a.start < extent && (a.length - 1) <= (extent - 1 - a.start) / a.step));
  WEFT_REQUIRE(fits, op, ": ", a.length, " elements from ", a.start, " in steps of ", a.step,
               " do not lie within dim ", a.dim, " of ", x.ToString());
}

TensorType SliceType(const TensorType& x, const StridedSliceAttributes& a) {
  TensorType slice = x;
  slice.shape[a.dim] = a.length;
  return slice;
}

TensorTypes InferSlice(Operands operands, const StridedSliceAttributes& a) {
  RequirePlaces("strided_slice", operands[0], a);
  return {SliceType(operands[0], a)};
}

// As kSlice: owners of what is taken give it, and a rank makes its own part of the result. Where the extents
// are the same, all of x is taken.
std::string RuleOf(const TensorType& from, int dim, int64_t length) {
  const bool all = from.shape[dim] == length;
  return absl::StrCat(DimFactors(from.ndim(), dim, all ? "s" : "s@"), " -> ",
                      DimFactors(from.ndim(), dim, all ? "s" : "t"));
}

std::string RuleSlice(Operands operands, const StridedSliceAttributes& a) {
  return RuleOf(operands[0], a.dim, a.length);
}

void BackwardSlice(GradContext<StridedSliceAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const StridedSliceAttributes& a = ctx.attributes();
  const int64_t extent = ctx.operand_type(0).shape[a.dim];
  ctx.SetGrad(0, ctx.EmitLike(0, kStridedSliceGrad, {ctx.grad()},
                              {.dim = a.dim, .start = a.start, .step = a.step, .extent = extent}));
}

StridedSliceAttributes PlacesOf(const TensorType& dy, const StridedSliceGradAttributes& a) {
  return {.dim = a.dim, .start = a.start, .length = dy.shape[a.dim], .step = a.step};
}

TensorTypes InferSliceGrad(Operands operands, const StridedSliceGradAttributes& a) {
  TensorType dx = operands[0];
  WEFT_REQUIRE(a.dim >= 0 && a.dim < dx.ndim(), "strided_slice_grad: there is no dim ", a.dim, " in ",
               dx.ToString());
  dx.shape[a.dim] = a.extent;
  RequirePlaces("strided_slice_grad", dx, PlacesOf(operands[0], a));
  return {dx};
}

std::string RuleSliceGrad(Operands operands, const StridedSliceGradAttributes& a) {
  return RuleOf(operands[0], a.dim, a.extent);
}

void BackwardSliceGrad(GradContext<StridedSliceGradAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.Emit(kStridedSlice, {ctx.grad()}, PlacesOf(ctx.operand_type(0), ctx.attributes())));
}

TensorTypes InferScatter(Operands operands, const StridedSliceAttributes& a) {
  RequirePlaces("slice_scatter", operands[0], a);
  RequireType("slice_scatter", "src", operands[1], SliceType(operands[0], a));
  return {operands[0]};
}

std::string RuleScatter(Operands operands, const StridedSliceAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string x = DimFactors(ndim, a.dim, "n");
  return absl::StrCat(x, ", ", DimFactors(ndim, a.dim, "m!"), " -> ", x);
}

void BackwardScatter(GradContext<StridedSliceAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined()) return;
  const StridedSliceAttributes& a = ctx.attributes();
  if (ctx.Wants(0)) ctx.SetGrad(0, ctx.Emit(kSliceZero, {ctx.grad()}, a));
  if (!ctx.Wants(1)) return;
  ctx.SetGrad(1, a.step == 1
                     ? ctx.Emit(kSlice, {ctx.grad()}, {.dim = a.dim, .start = a.start, .length = a.length})
                     : ctx.Emit(kStridedSlice, {ctx.grad()}, a));
}

TensorTypes InferZero(Operands operands, const StridedSliceAttributes& a) {
  RequirePlaces("slice_zero", operands[0], a);
  return {operands[0]};
}

std::string RuleZero(Operands operands, const StridedSliceAttributes& a) {
  const std::string x = DimFactors(operands[0].ndim(), a.dim, "n");
  return absl::StrCat(x, " -> ", x);
}

void BackwardZero(GradContext<StridedSliceAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.Emit(kSliceZero, {ctx.grad()}, ctx.attributes()));
}

std::vector<Sample<StridedSliceAttributes>> SliceSamples() {
  return {{{{{DType::kF32, {3, 7, 2}}}}, {.dim = 1, .start = 1, .length = 3, .step = 2}},
          {{{{DType::kF32, {5}}}}, {.dim = 0, .start = 0, .length = 2, .step = 4}},
          {{{{DType::kF32, {2, 3}}}}, {.dim = 0, .start = 2, .length = 0, .step = 3}},
          {{{{DType::kI64, {8}}, -9, 9}}, {.dim = 0, .start = 2, .length = 2, .step = 3}},
          {{{{DType::kF32, {2, 3}}}}, {.dim = 1, .start = 0, .length = 3, .step = 1}}};
}

std::vector<Sample<StridedSliceGradAttributes>> SliceGradSamples() {
  return {{{{{DType::kF32, {3, 2, 2}}}}, {.dim = 1, .start = 1, .step = 3, .extent = 6}},
          {{{{DType::kF32, {1}}}}, {.dim = 0, .start = 4, .step = 2, .extent = 5}},
          {{{{DType::kF32, {2, 3}}}}, {.dim = 1, .start = 0, .step = 2, .extent = 5}}};
}

std::vector<Sample<StridedSliceAttributes>> ScatterSamples() {
  return {
      {{{{DType::kF32, {3, 7, 2}}}, {{DType::kF32, {3, 3, 2}}}},
       {.dim = 1, .start = 1, .length = 3, .step = 2}},
      {{{{DType::kF32, {5}}}, {{DType::kF32, {3}}}}, {.dim = 0, .start = 2, .length = 3, .step = 1}},
      {{{{DType::kI64, {6, 2}}, -9, 9}, {{DType::kI64, {2, 2}}, -9, 9}},
       {.dim = 0, .start = 0, .length = 2, .step = 4}},
      {{{{DType::kF32, {2, 3}}}, {{DType::kF32, {0, 3}}}}, {.dim = 0, .start = 1, .length = 0, .step = 2}}};
}

std::vector<Sample<StridedSliceAttributes>> ZeroSamples() {
  return {{{{{DType::kF32, {3, 7, 2}}}}, {.dim = 1, .start = 1, .length = 3, .step = 2}},
          {{{{DType::kF32, {5}}}}, {.dim = 0, .start = 2, .length = 3, .step = 1}}};
}

}  // namespace

constinit const Op<StridedSliceAttributes> kStridedSlice = {{
    .name = "strided_slice",
    .operands = "x",
    .infer = InferSlice,
    .rule = RuleSlice,
    .linear = "{x}",
    .backward = BackwardSlice,
    .samples = SliceSamples,
}};
constinit const Op<StridedSliceGradAttributes> kStridedSliceGrad = {{
    .name = "strided_slice_grad",
    .operands = "dy",
    .outputs = "dx",
    .infer = InferSliceGrad,
    .rule = RuleSliceGrad,
    .linear = "{dy}",
    .backward = BackwardSliceGrad,
    .samples = SliceGradSamples,
}};
constinit const Op<StridedSliceAttributes> kSliceScatter = {{
    .name = "slice_scatter",
    .operands = "x src",
    .infer = InferScatter,
    .rule = RuleScatter,
    .linear = "{x src}",
    .backward = BackwardScatter,
    .samples = ScatterSamples,
}};
constinit const Op<StridedSliceAttributes> kSliceZero = {{
    .name = "slice_zero",
    .operands = "x",
    .infer = InferZero,
    .rule = RuleZero,
    .linear = "{x}",
    .backward = BackwardZero,
    .samples = ZeroSamples,
}};

}  // namespace weft
