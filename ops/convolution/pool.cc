#include "ops/convolution/pool.h"

#include <string>
#include <vector>

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

// Windows of images and their pixels, which are whole.
constexpr char kImages[] = "n c h! w!";
constexpr char kPixels[] = "n c p! q!";

std::array<int64_t, 2> Spatial(const TensorType& type) { return {type.shape[2], type.shape[3]}; }

void RequireImages(absl::string_view op, const TensorType& x) {
  WEFT_REQUIRE(IsFloating(x.dtype) && x.ndim() == 4, op, ": expected a floating [n, c, h, w], got ",
               x.ToString());
}

TensorType PixelType(absl::string_view op, const TensorType& x, const PoolAttributes& a) {
  RequireImages(op, x);
  const std::array<int64_t, 2> extents = PoolOutputExtents(op, Spatial(x), a);
  return {x.dtype, {x.shape[0], x.shape[1], extents[0], extents[1]}};
}

TensorType ImageType(absl::string_view op, const TensorType& dy, const PoolGradAttributes& a) {
  const TensorType dx = {dy.dtype, {dy.shape[0], dy.shape[1], a.extents[0], a.extents[1]}};
  const TensorType expected = PixelType(op, dx, a.pool);
  WEFT_REQUIRE(dy == expected, op, ": expected dy ", expected.ToString(), ", got ", dy.ToString());
  return dx;
}

TensorTypes InferMax(Operands operands, const PoolAttributes& a) {
  const TensorType y = PixelType("max_pool", operands[0], a);
  return {y, {DType::kI64, y.shape}};
}

TensorTypes InferMaxGrad(Operands operands, const PoolGradAttributes& a) {
  RequireImages("max_pool_grad", operands[1]);
  const TensorType index = {DType::kI64, operands[1].shape};
  WEFT_REQUIRE(operands[0] == index, "max_pool_grad: expected index ", index.ToString(), ", got ",
               operands[0].ToString());
  return {ImageType("max_pool_grad", operands[1], a)};
}

TensorTypes InferAvg(Operands operands, const PoolAttributes& a) {
  WEFT_REQUIRE(a.dilation[0] == 1 && a.dilation[1] == 1, "avg_pool: dilation is not supported, got [",
               a.dilation[0], ", ", a.dilation[1], "]");
  return {PixelType("avg_pool", operands[0], a)};
}

TensorTypes InferAvgGrad(Operands operands, const PoolGradAttributes& a) {
  RequireImages("avg_pool_grad", operands[0]);
  return {ImageType("avg_pool_grad", operands[0], a)};
}

std::string RuleMax(Operands, const PoolAttributes&) {
  return absl::StrCat(kImages, " -> ", kPixels, ", ", kPixels);
}
std::string RuleMaxGrad(Operands, const PoolGradAttributes&) {
  return absl::StrCat(kPixels, ", ", kPixels, " -> ", kImages);
}
std::string RuleAvg(Operands, const PoolAttributes&) { return absl::StrCat(kImages, " -> ", kPixels); }
std::string RuleAvgGrad(Operands, const PoolGradAttributes&) {
  return absl::StrCat(kPixels, " -> ", kImages);
}

void BackwardMax(GradContext<PoolAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.EmitLike(0, kMaxPoolGrad, {ctx.saved("index"), ctx.grad()},
                              {.pool = ctx.attributes(), .extents = Spatial(ctx.operand_type(0))}));
}

void BackwardAvg(GradContext<PoolAttributes, NoScalars>& ctx) {
  if (!ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.EmitLike(0, kAvgPoolGrad, {ctx.grad()},
                              {.pool = ctx.attributes(), .extents = Spatial(ctx.operand_type(0))}));
}

// Images [2, 3, 5, 4] and what they become.
std::vector<PoolAttributes> SampleAttributes() {
  return {{.kernel = {2, 2}, .stride = {2, 2}},
          {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 1}, .count_padding = false},
          {.kernel = {2, 3}, .stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true}};
}

std::vector<Sample<PoolAttributes>> Samples() {
  std::vector<Sample<PoolAttributes>> samples;
  for (const PoolAttributes& a : SampleAttributes()) {
    samples.push_back({{{{DType::kF32, {2, 3, 5, 4}}}}, a});
  }
  return samples;
}

std::vector<Sample<PoolAttributes>> MaxSamples() {
  std::vector<Sample<PoolAttributes>> samples = Samples();
  samples.push_back({{{{DType::kF32, {1, 2, 6, 5}}}},
                     {.kernel = {2, 2}, .stride = {1, 2}, .padding = {1, 0}, .dilation = {2, 3}}});
  return samples;
}

std::vector<Sample<PoolGradAttributes>> AvgGradSamples() {
  std::vector<Sample<PoolGradAttributes>> samples;
  for (const PoolAttributes& a : SampleAttributes()) {
    const TensorType x = {DType::kF32, {2, 3, 5, 4}};
    samples.push_back({{{PixelType("avg_pool", x, a)}}, {.pool = a, .extents = Spatial(x)}});
  }
  return samples;
}

std::vector<Sample<PoolGradAttributes>> MaxGradSamples() {
  std::vector<Sample<PoolGradAttributes>> samples = AvgGradSamples();
  for (Sample<PoolGradAttributes>& sample : samples) {
    const SampleOperand dy = sample.operands[0];
    sample.operands = {{{DType::kI64, dy.type.shape}, 0, 20}, dy};
  }
  return samples;
}

}  // namespace

std::array<int64_t, 2> PoolOutputExtents(absl::string_view op, const std::array<int64_t, 2>& image,
                                         const PoolAttributes& a) {
  std::array<int64_t, 2> extents;
  for (int i : {0, 1}) {
    WEFT_REQUIRE(a.kernel[i] > 0 && a.stride[i] > 0 && a.dilation[i] > 0, op,
                 ": kernel, stride and dilation must be positive, got ", a.kernel[i], ", ", a.stride[i], ", ",
                 a.dilation[i]);
    WEFT_REQUIRE(a.padding[i] >= 0 && 2 * a.padding[i] <= a.kernel[i], op,
                 ": padding must be at most half of the kernel, got ", a.padding[i], " for ", a.kernel[i]);
    const int64_t room = image[i] + 2 * a.padding[i] - a.dilation[i] * (a.kernel[i] - 1) - 1 +
                         (a.ceil_mode ? a.stride[i] - 1 : 0);
    WEFT_REQUIRE(room >= 0 && image[i] > 0, op, ": a kernel of ", a.kernel[i], " with dilation ",
                 a.dilation[i], " does not fit an image of ", image[i], " with padding ", a.padding[i]);
    extents[i] = room / a.stride[i] + 1;
    if ((extents[i] - 1) * a.stride[i] >= image[i] + a.padding[i]) --extents[i];
    for (int64_t index = 0; a.dilation[i] > 1 && index < extents[i]; ++index) {
      const int64_t start = index * a.stride[i] - a.padding[i];
      const int64_t steps = start < 0 ? (-start + a.dilation[i] - 1) / a.dilation[i] : 0;
      WEFT_REQUIRE(steps < a.kernel[i] && start + steps * a.dilation[i] < image[i], op, ": window ", index,
                   " holds no element of an image of ", image[i], ", only padding");
    }
  }
  return extents;
}

constinit const Op<PoolAttributes> kMaxPool = {{
    .name = "max_pool",
    .operands = "x",
    .outputs = "y index",
    .infer = InferMax,
    .rule = RuleMax,
    .saves = "index",
    .backward = BackwardMax,
    .samples = MaxSamples,
}};

constinit const Op<PoolGradAttributes> kMaxPoolGrad = {{
    .name = "max_pool_grad",
    .operands = "index dy",
    .outputs = "dx",
    .infer = InferMaxGrad,
    .rule = RuleMaxGrad,
    .linear = "{dy}",
    .samples = MaxGradSamples,
}};

constinit const Op<PoolAttributes> kAvgPool = {{
    .name = "avg_pool",
    .operands = "x",
    .infer = InferAvg,
    .rule = RuleAvg,
    .linear = "{x}",
    .backward = BackwardAvg,
    .samples = Samples,
}};

constinit const Op<PoolGradAttributes> kAvgPoolGrad = {{
    .name = "avg_pool_grad",
    .operands = "dy",
    .outputs = "dx",
    .infer = InferAvgGrad,
    .rule = RuleAvgGrad,
    .linear = "{dy}",
    .samples = AvgGradSamples,
}};

}  // namespace weft
