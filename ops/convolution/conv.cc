#include "ops/convolution/conv.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/reduce/reduce.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

SpatialPair Spatial(const TensorType& type) { return {type.shape[2], type.shape[3]}; }

void RequireAttributes(absl::string_view op, const ConvAttributes& a) {
  for (int i : {0, 1}) {
    WEFT_REQUIRE(a.stride[i] > 0 && a.dilation[i] > 0 && a.padding[i] >= 0, op,
                 ": stride and dilation must be positive and padding not negative, got stride [", a.stride[0],
                 ", ", a.stride[1], "], padding [", a.padding[0], ", ", a.padding[1], "], dilation [",
                 a.dilation[0], ", ", a.dilation[1], "]");
  }
  WEFT_REQUIRE(a.groups > 0, op, ": groups must be positive, got ", a.groups);
}

void RequireImages(absl::string_view op, const TensorType& images, const TensorType& other) {
  WEFT_REQUIRE(
      IsFloating(images.dtype) && images.dtype == other.dtype && images.ndim() == 4 && other.ndim() == 4, op,
      ": expected operands [n, c, h, w] and [o, c / groups, kh, kw], floating and of one dtype; ", "got ",
      images.ToString(), " and ", other.ToString());
}

// That c channels, and o outputs of kernels with `kernel_channels`, fit the groups.
void RequireChannels(absl::string_view op, int64_t c, int64_t o, int64_t kernel_channels, int64_t groups) {
  WEFT_REQUIRE(c == kernel_channels * groups && o % groups == 0, op, ": ", c, " channels and ", o,
               " outputs in ", groups, " groups do not fit kernels of ", kernel_channels, " channels");
}

TensorTypes Infer(Operands operands, const ConvAttributes& a) {
  const TensorType& x = operands[0];
  const TensorType& w = operands[1];
  RequireAttributes("conv", a);
  RequireImages("conv", x, w);
  RequireChannels("conv", x.shape[1], w.shape[0], w.shape[1], a.groups);
  const TensorType bias = {x.dtype, {w.shape[0]}};
  WEFT_REQUIRE(operands[2] == bias, "conv: b must be ", bias.ToString(), ", got ", operands[2].ToString());
  const SpatialPair y = ConvOutputExtents(Spatial(x), Spatial(w), a);
  return {{x.dtype, {x.shape[0], w.shape[0], y[0], y[1]}}};
}

TensorTypes InferDataGrad(Operands operands, const ConvGradAttributes& a) {
  const TensorType& dy = operands[0];
  const TensorType& w = operands[1];
  RequireAttributes("conv_data_grad", a.conv);
  RequireImages("conv_data_grad", dy, w);
  const int64_t c = w.shape[1] * a.conv.groups;
  RequireChannels("conv_data_grad", c, w.shape[0], w.shape[1], a.conv.groups);
  WEFT_REQUIRE(dy.shape[1] == w.shape[0] && Spatial(dy) == ConvOutputExtents(a.extents, Spatial(w), a.conv),
               "conv_data_grad: dy ", dy.ToString(), " is not the output of w ", w.ToString(), " on images [",
               a.extents[0], ", ", a.extents[1], "]");
  return {{dy.dtype, {dy.shape[0], c, a.extents[0], a.extents[1]}}};
}

TensorTypes InferWeightGrad(Operands operands, const ConvGradAttributes& a) {
  const TensorType& x = operands[0];
  const TensorType& dy = operands[1];
  RequireAttributes("conv_weight_grad", a.conv);
  RequireImages("conv_weight_grad", x, dy);
  const int64_t kernel_channels = x.shape[1] / a.conv.groups;
  RequireChannels("conv_weight_grad", x.shape[1], dy.shape[1], kernel_channels, a.conv.groups);
  WEFT_REQUIRE(x.shape[0] == dy.shape[0] && Spatial(dy) == ConvOutputExtents(Spatial(x), a.extents, a.conv),
               "conv_weight_grad: dy ", dy.ToString(), " is not the output of kernels [", a.extents[0], ", ",
               a.extents[1], "] on x ", x.ToString());
  return {{x.dtype, {dy.shape[1], kernel_channels, a.extents[0], a.extents[1]}}};
}

// The factors of x (and dx), w (and dw), b, y (and dy).
struct ConvFactors {
  const char* x;
  const char* w;
  const char* b;
  const char* y;
};

ConvFactors FactorsOf(int64_t channels, int64_t outputs, const ConvAttributes& a) {
  if (a.groups == 1) return {"n c h! w!", "o c i! j!", "o", "n o p! q!"};
  // One channel a group: a piece of the channels is a convolution of its own.
  if (a.groups == channels && a.groups == outputs) return {"n c h! w!", "c k! i! j!", "c", "n c p! q!"};
  return {"n c! h! w!", "o! k! i! j!", "o!", "n o! p! q!"};
}

std::string Rule(Operands operands, const ConvAttributes& a) {
  const ConvFactors f = FactorsOf(operands[0].shape[1], operands[1].shape[0], a);
  return absl::StrCat(f.x, ", ", f.w, ", ", f.b, " -> ", f.y);
}

std::string RuleDataGrad(Operands operands, const ConvGradAttributes& a) {
  const Shape& w = operands[1].shape;
  const ConvFactors f = FactorsOf(w[1] * a.conv.groups, w[0], a.conv);
  return absl::StrCat(f.y, ", ", f.w, " -> ", f.x);
}

std::string RuleWeightGrad(Operands operands, const ConvGradAttributes& a) {
  const ConvFactors f = FactorsOf(operands[0].shape[1], operands[1].shape[1], a.conv);
  return absl::StrCat(f.x, ", ", f.y, " -> ", f.w);
}

void Backward(GradContext<ConvAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  if (!dy.defined()) return;
  const ConvAttributes& a = ctx.attributes();
  const Value w = ctx.Wants(0) ? ctx.saved("w") : Value();
  if (ctx.Wants(2)) ctx.ReleaseGrad(2, ctx.Emit(kSum, {dy}, {.dims = DimMaskOf({0, 2, 3})}));
  if (ctx.Wants(1)) {
    ctx.ReleaseGrad(1, ctx.EmitLike(1, kConvWeightGrad, {ctx.saved("x"), dy},
                                    {.conv = a, .extents = Spatial(ctx.operand_type(1))}));
  }
  if (!ctx.Wants(0)) return;
  ctx.SetGrad(0,
              ctx.EmitLike(0, kConvDataGrad, {dy, w}, {.conv = a, .extents = Spatial(ctx.operand_type(0))}));
}

struct SampleShapes {
  Shape x;
  Shape w;
  ConvAttributes attributes;
};

std::vector<SampleShapes> AllSampleShapes() {
  return {{{2, 3, 4, 5}, {4, 3, 3, 2}, {}},
          {{3, 2, 5, 3}, {3, 2, 3, 3}, {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}}},
          {{2, 4, 3, 3}, {6, 2, 2, 2}, {.padding = {0, 1}, .groups = 2}},
          {{1, 3, 4, 4}, {3, 1, 3, 3}, {.stride = {1, 2}, .padding = {1, 1}, .groups = 3}},
          {{2, 3, 2, 2}, {5, 3, 1, 1}, {}}};
}

TensorType F32(const Shape& shape) { return {DType::kF32, shape}; }

Shape OutputShape(const SampleShapes& s) {
  const SpatialPair y = ConvOutputExtents({s.x[2], s.x[3]}, {s.w[2], s.w[3]}, s.attributes);
  return {s.x[0], s.w[0], y[0], y[1]};
}

std::vector<Sample<ConvAttributes>> Samples() {
  std::vector<Sample<ConvAttributes>> samples;
  for (const SampleShapes& s : AllSampleShapes()) {
    samples.push_back({{{F32(s.x)}, {F32(s.w)}, {F32({s.w[0]})}}, s.attributes});
  }
  return samples;
}

std::vector<Sample<ConvGradAttributes>> DataGradSamples() {
  std::vector<Sample<ConvGradAttributes>> samples;
  for (const SampleShapes& s : AllSampleShapes()) {
    samples.push_back({{{F32(OutputShape(s))}, {F32(s.w)}}, {s.attributes, {s.x[2], s.x[3]}}});
  }
  return samples;
}

std::vector<Sample<ConvGradAttributes>> WeightGradSamples() {
  std::vector<Sample<ConvGradAttributes>> samples;
  for (const SampleShapes& s : AllSampleShapes()) {
    samples.push_back({{{F32(s.x)}, {F32(OutputShape(s))}}, {s.attributes, {s.w[2], s.w[3]}}});
  }
  return samples;
}

}  // namespace

SpatialPair ConvOutputExtents(const SpatialPair& image, const SpatialPair& kernel, const ConvAttributes& a) {
  SpatialPair extents;
  for (int i : {0, 1}) {
    const int64_t reach = a.dilation[i] * (kernel[i] - 1) + 1;
    const int64_t padded = image[i] + 2 * a.padding[i];
    WEFT_REQUIRE(kernel[i] > 0 && reach <= padded, "conv: a kernel of ", kernel[i], " that reaches over ",
                 reach, " does not fit an image of ", padded, ", padding included");
    extents[i] = (padded - reach) / a.stride[i] + 1;
  }
  return extents;
}

constinit const Op<ConvAttributes> kConv = {{
    .name = "conv",
    .operands = "x w b",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x b}{w b}",
    .saves = "x w",
    .backward = Backward,
    .samples = Samples,
}};

constinit const Op<ConvGradAttributes> kConvDataGrad = {{
    .name = "conv_data_grad",
    .operands = "dy w",
    .outputs = "dx",
    .infer = InferDataGrad,
    .rule = RuleDataGrad,
    .linear = "{dy}{w}",
    .samples = DataGradSamples,
}};

constinit const Op<ConvGradAttributes> kConvWeightGrad = {{
    .name = "conv_weight_grad",
    .operands = "x dy",
    .outputs = "dw",
    .infer = InferWeightGrad,
    .rule = RuleWeightGrad,
    .linear = "{x}{dy}",
    .samples = WeightGradSamples,
}};

}  // namespace weft
