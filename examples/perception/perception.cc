#include "examples/perception/perception.h"

#include <utility>

#include "dtensor/functions.h"
#include "dtensor/nn/initializers.h"

namespace weft {
namespace {

constexpr double kPenaltyWeight = 1e-3;  // PointNet's

const LinearOptions kLinear = {.weight = KaimingUniform()};

}  // namespace

CameraBlock::CameraBlock(Module* parent, std::string name, int64_t in, int64_t out)
    : Module(parent, std::move(name)),
      conv(this, "conv", in, out, /*kernel=*/3, {.stride = {2, 2}, .padding = {1, 1}, .bias = false}),
      norm(this, "norm", out) {}

DTensor CameraBlock::Forward(const DTensor& x) { return Relu(norm(conv(x))); }

CameraNet::CameraNet(Module* parent, std::string name, const PerceptionConfig& config)
    : Module(parent, std::move(name)),
      block1(this, "block1", 3, config.width),
      block2(this, "block2", config.width, 2 * config.width),
      block3(this, "block3", 2 * config.width, 4 * config.width),
      out(this, "out", 4 * config.width, config.features, kLinear) {}

DTensor CameraNet::Forward(const DTensor& images) {
  return out(Mean(block3(block2(block1(images))), {2, 3}));  // [b, 4 w, h, w] -> [b, 4 w] -> [b, f]
}

PointLayer::PointLayer(Module* parent, std::string name, int64_t in, int64_t out)
    : Module(parent, std::move(name)),
      conv(this, "conv", in, out, /*kernel=*/1, {.bias = false}),
      norm(this, "norm", out) {}

DTensor PointLayer::Forward(const DTensor& x) { return Relu(norm(conv(x))); }

PointTransform::PointTransform(Module* parent, std::string name, int64_t k, int64_t width)
    : Module(parent, std::move(name)),
      layer1(this, "layer1", k, width),
      layer2(this, "layer2", width, 2 * width),
      hidden(this, "hidden", 2 * width, width, kLinear),
      out(this, "out", Shape{width}, Shape{k, k}, {.bias = false}),
      shift(this, "shift", {.shape = {k, k}, .initializer = FromFunction([](absl::Span<const int64_t> index) {
                                               return index[0] == index[1] ? 1.0 : 0.0;
                                             })}) {}

DTensor PointTransform::Forward(const DTensor& x) {
  const DTensor cloud = Max(layer2(layer1(x)), {2});  // [b, 2 w]
  return out(Relu(hidden(cloud))) + shift.Value();    // [b, k, k]
}

PointNet::PointNet(Module* parent, std::string name, const PerceptionConfig& config)
    : Module(parent, std::move(name)),
      point_transform(this, "point_transform", 3, config.width),
      layer1(this, "layer1", 3, config.width),
      feature_transform(this, "feature_transform", config.width, config.width),
      layer2(this, "layer2", config.width, 2 * config.width),
      layer3(this, "layer3", 2 * config.width, 4 * config.width),
      out(this, "out", 4 * config.width + 3, config.features, kLinear),
      width_(static_cast<double>(config.width)) {}

PointNet::Result PointNet::operator()(const DTensor& points) {
  DTensors made = CallModule(*this, {points}, /*num_outputs=*/2);
  return {.features = made[0], .penalty = made[1]};
}

DTensors PointNet::ForwardTensors(const DTensors& given) {
  const DTensor& points = given[0];
  const DTensor mean = Mean(points, {1}, /*keep_dims=*/true);  // [b, 1, 3]
  DTensor x = Transpose(points - mean, 1, 2);                  // [b, 3, n]
  x = layer1(Bmm(point_transform(x), x));                      // [b, w, n]
  const DTensor transform = feature_transform(x);              // [b, w, w]
  x = layer3(layer2(Bmm(transform, x)));                       // [b, 4 w, n]
  const DTensor features = out(Concat({Max(x, {2}), Squeeze(mean, 1)}, /*dim=*/1));
  // |I - A A'|^2 = |A A'|^2 - 2 |A|^2 + w, of each cloud.
  const DTensor product = Bmm(transform, Transpose(transform, 1, 2));
  const DTensor distance = Sum(Square(product)) - 2 * Sum(Square(transform));
  return {features, distance / static_cast<double>(points.shape()[0]) + width_};
}

Fusion::Fusion(Module* parent, std::string name, const PerceptionConfig& config)
    : Module(parent, std::move(name)),
      up(this, "up", 2 * config.features, 4 * config.features, kLinear),
      down(this, "down", 4 * config.features, 2 * config.features, kLinear),
      drop(this, "drop", config.dropout) {}

DTensor Fusion::operator()(const DTensor& image, const DTensor& cloud) {
  return CallModule(*this, {image, cloud})[0];
}

DTensors Fusion::ForwardTensors(const DTensors& x) {
  return {Relu(down(drop(Relu(up(Concat({x[0], x[1]}, /*dim=*/1))))))};
}

Heads::Heads(Module* parent, std::string name, const PerceptionConfig& config)
    : Module(parent, std::move(name)),
      scores(this, "scores", 2 * config.features, config.classes, kLinear),
      centers(this, "centers", 2 * config.features, 3, kLinear) {}

Detections Heads::operator()(const DTensor& fused) {
  DTensors made = CallModule(*this, {fused}, /*num_outputs=*/2, [&](const DTensors& x) -> DTensors {
    return {scores(x[0]), centers(x[0])};
  });
  return {.scores = made[0], .centers = made[1]};
}

DTensor Heads::Loss(const DTensor& fused, const DTensor& penalty, const DTensor& classes,
                    const DTensor& where) {
  return CallModule(*this, {fused, penalty, classes, where}, [&](const DTensors& x) {
    const DTensor class_loss = CrossEntropy(scores(x[0]), x[2]).Mean();
    return class_loss + MseLoss(centers(x[0]), x[3]).Mean() + kPenaltyWeight * x[1];
  });
}

Perception::Perception(const PerceptionConfig& config)
    : camera(this, "camera", config),
      lidar(this, "lidar", config),
      fusion(this, "fusion", config),
      heads(this, "heads", config) {}

Detections Perception::operator()(const Measurements& measured) {
  const ModuleCall call(*this);
  const DTensor image = camera(measured.images);
  const Detections found = heads(fusion(image, lidar(measured.points).features));
  return {.scores = call.Output(found.scores, 0), .centers = call.Output(found.centers, 1)};
}

DTensor Perception::Loss(const Measurements& measured, const DTensor& classes, const DTensor& centers) {
  const ModuleCall call(*this);
  const DTensor image = camera(measured.images);
  const PointNet::Result cloud = lidar(measured.points);
  const DTensor fused = fusion(image, cloud.features);
  return call.Output(heads.Loss(fused, cloud.penalty, classes, centers));
}

}  // namespace weft
