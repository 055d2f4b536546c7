#include "dtensor/nn/layers/convolution.h"

#include <cmath>

#include "dtensor/functions.h"

namespace weft::nn {
namespace {

// Of an output: how many numbers it sums.
int64_t FanIn(const Shape& weight) {
  int64_t count = 1;
  for (int dim = 1; dim < weight.ndim(); ++dim) count *= weight[dim];
  return count;
}

Initializer WithinFan(const Shape& weight) {
  const double bound = 1 / std::sqrt(static_cast<double>(FanIn(weight)));
  return Initializer::Uniform(-bound, bound);
}

// `shape` is [out, in / groups, kernel...].
ParameterSpec WeightSpec(const Shape& shape, int64_t groups, const std::optional<Initializer>& initializer) {
  // Where each channel is a group of its own, outputs split with inputs; other groups stay whole.
  const bool splits_outputs = groups == 1 || shape[0] == groups;
  const int64_t in = FanIn(shape);
  return {.shape = shape,
          .initializer = initializer.value_or(WithinFan(shape)),
          .shard_dims = {.column = splits_outputs ? 0 : -1, .row = groups == 1 ? 1 : -1},
          .fans = Fans{.in = in, .out = shape[0] * (in / shape[1])}};
}

ParameterSpec BiasSpec(const ParameterSpec& weight) {
  return {.shape = {weight.shape[0]},
          .initializer = WithinFan(weight.shape),
          .shard_dims = {.column = weight.shard_dims.column},
          .decays = false};
}

Shape WeightShape(absl::string_view name, int64_t in, int64_t out, int64_t groups,
                  absl::Span<const int64_t> kernel) {
  WEFT_REQUIRE(in >= 1 && out >= 1 && groups >= 1 && in % groups == 0 && out % groups == 0, "convolution '",
               name, "': expected channels of at least 1 that ", groups, " groups divide, got ", in, " and ",
               out);
  Shape shape = {out, in / groups};
  for (const int64_t extent : kernel) {
    WEFT_REQUIRE(extent >= 1, "convolution '", name, "': expected a kernel of at least 1, got ", extent);
    shape.push_back(extent);
  }
  return shape;
}

}  // namespace

Conv1d::Conv1d(Module* parent, std::string name, int64_t in, int64_t out, int64_t kernel,
               const Conv1dOptions& options)
    : Module(parent, std::move(name)),
      weight(
          this, "weight",
          WeightSpec(WeightShape(path(), in, out, options.groups, {kernel}), options.groups, options.weight)),
      options_(options) {
  if (options.bias) bias.emplace(this, "bias", BiasSpec(weight.spec()));
}

DTensor Conv1d::Forward(const DTensor& x) {
  return weft::Conv1d(x, weight.Value(), bias ? bias->Value() : DTensor(),
                      {.stride = options_.stride,
                       .padding = options_.padding,
                       .dilation = options_.dilation,
                       .groups = options_.groups});
}

Conv2d::Conv2d(Module* parent, std::string name, int64_t in, int64_t out,
               const std::array<int64_t, 2>& kernel, const Conv2dOptions& options)
    : Module(parent, std::move(name)),
      weight(
          this, "weight",
          WeightSpec(WeightShape(path(), in, out, options.groups, kernel), options.groups, options.weight)),
      options_(options) {
  if (options.bias) bias.emplace(this, "bias", BiasSpec(weight.spec()));
}

DTensor Conv2d::Forward(const DTensor& x) {
  return weft::Conv2d(x, weight.Value(), bias ? bias->Value() : DTensor(),
                      {.stride = options_.stride,
                       .padding = options_.padding,
                       .dilation = options_.dilation,
                       .groups = options_.groups});
}

}  // namespace weft::nn
