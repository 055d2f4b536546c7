#include "ops/convolution/resample.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

TensorTypes InferAs(const char* op, const TensorType& x, const ResampleAttributes& a) {
  WEFT_REQUIRE(IsFloating(x.dtype), op, ": expected a floating dtype, got ", x.ToString());
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), op, ": there is no dim ", a.dim, " in ", x.ToString());
  WEFT_REQUIRE(x.shape[a.dim] >= 1 && a.extent >= 1, op, ": expected extents of at least 1, got ",
               x.shape[a.dim], " of ", x.ToString(), " and ", a.extent);
  const bool interpolates = a.mode == ResampleMode::kLinear || a.mode == ResampleMode::kCubic;
  WEFT_REQUIRE(!a.align_corners || interpolates, op, ": align_corners is for linear and cubic only");
  WEFT_REQUIRE(a.scale >= 0 && std::isfinite(a.scale), op, ": expected a finite scale, got ", a.scale);
  TensorType y = x;
  y.shape[a.dim] = a.extent;
  return {y};
}

TensorTypes Infer(Operands operands, const ResampleAttributes& a) {
  return InferAs("resample", operands[0], a);
}
TensorTypes InferGrad(Operands operands, const ResampleAttributes& a) {
  return InferAs("resample_grad", operands[0], a);
}

// Two factors: x's pieces on one side are not y's on the other.
std::string Rule(Operands operands, const ResampleAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(DimFactors(ndim, a.dim, "s@"), " -> ", DimFactors(ndim, a.dim, "t"));
}

ResampleAttributes WithExtent(ResampleAttributes a, int64_t extent) {
  a.extent = extent;
  return a;
}

// The other of the two, of the operand's extent.
template <const Op<ResampleAttributes>* transpose>
void Backward(GradContext<ResampleAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const ResampleAttributes& a = ctx.attributes();
  ctx.SetGrad(0, ctx.EmitLike(0, *transpose, {ctx.grad()}, WithExtent(a, ctx.operand_type(0).shape[a.dim])));
}

std::vector<Sample<ResampleAttributes>> Samples() {
  const auto f32 = [](const Shape& shape) { return std::vector<SampleOperand>{{{DType::kF32, shape}}}; };
  using M = ResampleMode;
  return {{f32({2, 3, 2}), {.dim = 1, .extent = 5, .mode = M::kNearest}},
          {f32({5}), {.dim = 0, .extent = 3, .mode = M::kNearestExact}},
          {f32({2, 4}), {.dim = 1, .extent = 7, .mode = M::kLinear}},
          {f32({4, 2}), {.dim = 0, .extent = 3, .mode = M::kLinear, .align_corners = true}},
          {f32({3}), {.dim = 0, .extent = 7, .mode = M::kLinear, .scale = 2.5}},
          {f32({5, 1}), {.dim = 0, .extent = 4, .mode = M::kCubic}},
          {f32({2, 5}), {.dim = 1, .extent = 7, .mode = M::kCubic, .align_corners = true}},
          {f32({5, 2}), {.dim = 0, .extent = 3, .mode = M::kArea}}};
}

}  // namespace

constinit const Op<ResampleAttributes> kResample = {{
    .name = "resample",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .backward = Backward<&kResampleGrad>,
    .samples = Samples,
}};
constinit const Op<ResampleAttributes> kResampleGrad = {{
    .name = "resample_grad",
    .operands = "dy",
    .outputs = "dx",
    .infer = InferGrad,
    .rule = Rule,
    .linear = "{dy}",
    .backward = Backward<&kResample>,
    .samples = Samples,
}};

}  // namespace weft
