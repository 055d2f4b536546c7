#include "examples/images/resnet.h"

#include "dtensor/functions.h"
#include "dtensor/nn/initializers.h"

namespace weft {
namespace {

nn::Conv2dOptions Options(int64_t stride, int64_t padding) {
  return {.stride = {stride, stride},
          .padding = {padding, padding},
          .bias = false,  // a norm follows
          .weight = KaimingNormal({.fan_out = true})};
}

}  // namespace

ResNetBlock::ResNetBlock(Module* parent, std::string name, int64_t in, int64_t out, int64_t stride)
    : Module(parent, std::move(name)),
      conv1(this, "conv1", in, out, /*kernel=*/3, Options(stride, /*padding=*/1)),
      norm1(this, "norm1", out),
      conv2(this, "conv2", out, out, /*kernel=*/3, Options(/*stride=*/1, /*padding=*/1)),
      norm2(this, "norm2", out) {
  if (in == out && stride == 1) return;
  shortcut.emplace(this, "shortcut");
  shortcut->Add<nn::Conv2d>(in, out, /*kernel=*/1, Options(stride, /*padding=*/0));
  shortcut->Add<BatchNorm2d>(out);
}

DTensor ResNetBlock::Forward(const DTensor& x) {
  const DTensor y = norm2(conv2(Relu(norm1(conv1(x)))));
  return Relu(y + (shortcut ? (*shortcut)(x) : x));
}

ResNet::ResNet(const ResNetConfig& config)
    : head(this, "head", config.width << (config.stages - 1), config.classes,
           {.weight = KaimingUniform({.negative_slope = 1})}),
      config_(config) {
  stem.Add<nn::Conv2d>(/*in=*/1, config.width, /*kernel=*/3, Options(/*stride=*/2, /*padding=*/1));
  stem.Add<BatchNorm2d>(config.width);
  stem.Add<nn::Relu>();
  int64_t channels = config.width;
  for (int64_t stage = 0; stage < config.stages; ++stage) {
    for (int64_t block = 0; block < config.blocks; ++block) {
      const bool shrinks = stage > 0 && block == 0;
      const int64_t out = shrinks ? 2 * channels : channels;
      blocks.Append<ResNetBlock>(channels, out, /*stride=*/shrinks ? 2 : 1);
      channels = out;
    }
  }
}

std::vector<Segment> ResNet::MakeSegments() {
  const auto as_segment = [](Module& module, double cost) {
    return Segment{
        .modules = {&module},
        .cost = cost,
        .run = [&module](const DTensors& x) -> DTensors { return {module(x[0])}; },
    };
  };
  // Products of numbers for each pixel that the stem makes. Stages have a quarter of the pixels of the one before, and
  // twice its channels: so blocks cost alike, but for a stage's first, which reads half of the channels.
  const auto width = static_cast<double>(config_.width);
  const double block = 2 * 9 * width * width;
  const double first_block = (4.5 + 9 + 0.5) * width * width;
  std::vector<Segment> chain = {as_segment(stem, 9 * width)};
  for (int i = 0; i < blocks.size(); ++i) {
    const bool shrinks = i > 0 && i % config_.blocks == 0;
    chain.push_back(as_segment(blocks[i], shrinks ? first_block : block));
  }
  chain.push_back({
      .modules = {&head},
      .cost = width,  // the mean; the product is of one pixel
      // [n, c, h, w] -> [n, c]
      .run = [this](const DTensors& x) -> DTensors {
        return {head(Mean(x[0], {2, 3}))};
      },
  });
  return chain;
}

LossSum ResNet::LossOf(const DTensors& logits, const DTensor& labels) {
  return CrossEntropy(logits[0], labels);
}

std::vector<PlanEntry> ResNetTensorPlan(const std::string& axis) {
  return {
      {"blocks.*.conv1", ColumnParallel(axis)},
      {"blocks.*.norm1", ColumnParallel(axis, {.input = Shard(1)})},
      {"blocks.*.conv2", RowParallel(axis)},
  };
}

}  // namespace weft
