#include "ops/shape/slice.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"

namespace weft {
namespace {

void RequireDim(absl::string_view op, const TensorType& x, int dim) {
  WEFT_REQUIRE(dim >= 0 && dim < x.ndim(), op, ": there is no dim ", dim, " in ", x.ToString());
}

TensorTypes Infer(absl::Span<const TensorType> operands, const SliceAttributes& a) {
  TensorType x = operands[0];
  RequireDim("slice", x, a.dim);
  const int64_t extent = x.shape[a.dim];
  WEFT_REQUIRE(a.start >= 0 && a.length >= 0 && a.start <= extent && a.length <= extent - a.start,
               "slice: ", a.length, " elements from ", a.start, " do not lie within dim ", a.dim, " of ",
               x.ToString());
  x.shape[a.dim] = a.length;
  return {x};
}

// The dim has another extent on either side, so it has two factors: owners of the first give what they have,
// of the second a rank makes its own part. Where the extent is the same, the slice is all of x.
std::string RuleOf(const TensorType& from, int dim, int64_t length) {
  const bool all = from.shape[dim] == length;
  return absl::StrCat(DimFactors(from.ndim(), dim, all ? "s" : "s@"), " -> ",
                      DimFactors(from.ndim(), dim, all ? "s" : "t"));
}

std::string Rule(absl::Span<const TensorType> operands, const SliceAttributes& a) {
  return RuleOf(operands[0], a.dim, a.length);
}

void Backward(GradContext<SliceAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const SliceAttributes& a = ctx.attributes();
  const int64_t extent = ctx.operand_type(0).shape[a.dim];
  ctx.SetGrad(0,
              ctx.EmitLike(0, kSliceGrad, {ctx.grad()}, {.dim = a.dim, .start = a.start, .extent = extent}));
}

TensorTypes InferGrad(absl::Span<const TensorType> operands, const SliceGradAttributes& a) {
  TensorType dy = operands[0];
  RequireDim("slice_grad", dy, a.dim);
  const int64_t length = dy.shape[a.dim];
  WEFT_REQUIRE(a.start >= 0 && a.start <= a.extent && length <= a.extent - a.start, "slice_grad: dim ", a.dim,
               " of ", dy.ToString(), " does not fit into an extent of ", a.extent, " from ", a.start);
  dy.shape[a.dim] = a.extent;
  return {dy};
}

std::string RuleGrad(absl::Span<const TensorType> operands, const SliceGradAttributes& a) {
  return RuleOf(operands[0], a.dim, a.extent);
}

void BackwardGrad(GradContext<SliceGradAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const SliceGradAttributes& a = ctx.attributes();
  const int64_t length = ctx.operand_type(0).shape[a.dim];
  ctx.SetGrad(0, ctx.Emit(kSlice, {ctx.grad()}, {.dim = a.dim, .start = a.start, .length = length}));
}

std::vector<Sample<SliceAttributes>> Samples() {
  return {{{{{DType::kF32, {3, 5, 2}}}}, {.dim = 1, .start = 1, .length = 3}},
          {{{{DType::kF32, {5}}}}, {.dim = 0, .start = 4, .length = 1}},
          {{{{DType::kF32, {2, 3}}}}, {.dim = 0, .start = 1, .length = 0}},
          {{{{DType::kI32, {7}}, -9, 9}}, {.dim = 0, .start = 2, .length = 4}},
          {{{{DType::kBool, {2, 5}}, 0, 2}}, {.dim = 1, .start = 0, .length = 4}},
          {{{{DType::kF32, {2, 3}}}}, {.dim = 1, .start = 0, .length = 3}}};
}

std::vector<Sample<SliceGradAttributes>> GradSamples() {
  return {{{{{DType::kF32, {3, 2, 2}}}}, {.dim = 1, .start = 1, .extent = 5}},
          {{{{DType::kF32, {1}}}}, {.dim = 0, .start = 4, .extent = 5}},
          {{{{DType::kF32, {2, 3}}}}, {.dim = 1, .start = 0, .extent = 3}}};
}

}  // namespace

constinit const Op<SliceAttributes> kSlice = {{
    .name = "slice",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .is_view = true,
    .backward = Backward,
    .samples = Samples,
}};

constinit const Op<SliceGradAttributes> kSliceGrad = {{
    .name = "slice_grad",
    .operands = "dy",
    .outputs = "dx",
    .infer = InferGrad,
    .rule = RuleGrad,
    .linear = "{dy}",
    .backward = BackwardGrad,
    .samples = GradSamples,
}};

}  // namespace weft
