// A detector of one object per scene, from a camera's picture and a laser's points: a branch for each, and what joins
// them. A single-device program: where its parts lie is a plan's (examples/perception/perception_plan.h).

#ifndef WEFT_EXAMPLES_PERCEPTION_PERCEPTION_H_
#define WEFT_EXAMPLES_PERCEPTION_PERCEPTION_H_

#include <cstdint>
#include <string>

#include "dtensor/nn/layers/layers.h"
#include "dtensor/nn/module.h"

namespace weft {

struct PerceptionConfig {
  int64_t width = 16;     // channels of the first layer of each branch
  int64_t features = 32;  // that each branch hands on
  int64_t classes = 9;
  double dropout = 0.1;  // where the branches are joined
};

// Convolution, normalisation, rectifier.
// Shape: x [b, in, h, w] -> [b, out, h / 2, w / 2].
class CameraBlock : public Module {
 public:
  CameraBlock(Module* parent, std::string name, int64_t in, int64_t out);

  nn::Conv2d conv;
  BatchNorm2d norm;

 protected:
  DTensor Forward(const DTensor& x) override;
};

// Shape: images [b, 3, h, w] -> [b, features].
class CameraNet : public Module {
 public:
  CameraNet(Module* parent, std::string name, const PerceptionConfig& config);

  CameraBlock block1, block2, block3;
  Linear out;

 protected:
  DTensor Forward(const DTensor& images) override;
};

// The same layer for every point.
// Shape: x [b, in, n] -> [b, out, n].
class PointLayer : public Module {
 public:
  PointLayer(Module* parent, std::string name, int64_t in, int64_t out);

  nn::Conv1d conv;
  BatchNorm1d norm;

 protected:
  DTensor Forward(const DTensor& x) override;
};

// A matrix for each cloud, near the identity at first.
// Shape: x [b, k, n] -> [b, k, k].
class PointTransform : public Module {
 public:
  PointTransform(Module* parent, std::string name, int64_t k, int64_t width);

  PointLayer layer1, layer2;
  Linear hidden, out;
  Parameter shift;

 protected:
  DTensor Forward(const DTensor& x) override;
};

// Features of a cloud that do not depend on the order of its points: transforms of points and of their features, layers
// that all points share, and a maximum over them. Points are seen from their mean, which is a feature, too.
// Shape: points [b, n, 3] -> features [b, features]; and a scalar, how far the transforms of features are from orthogonal.
// Source: Qi et al., "PointNet: deep learning on point sets for 3D classification and segmentation", 2017; the mean:
//         Qi et al., "Frustum PointNets for 3D object detection from RGB-D data", 2018.
class PointNet : public Module {
 public:
  struct Result {
    DTensor features;
    DTensor penalty;
  };

  PointNet(Module* parent, std::string name, const PerceptionConfig& config);
  Result operator()(const DTensor& points);

  PointTransform point_transform;
  PointLayer layer1;
  PointTransform feature_transform;
  PointLayer layer2, layer3;
  Linear out;

 protected:
  DTensors ForwardTensors(const DTensors& given) override;

 private:
  double width_;
};

// Shape: image [b, f], cloud [b, f] -> [b, 2 f].
class Fusion : public Module {
 public:
  Fusion(Module* parent, std::string name, const PerceptionConfig& config);
  DTensor operator()(const DTensor& image, const DTensor& cloud);

  Linear up, down;
  nn::Dropout drop;

 protected:
  DTensors ForwardTensors(const DTensors& x) override;
};

// What a detector says of each scene: scores [b, classes], and where the object's middle is, centers [b, 3].
struct Detections {
  DTensor scores;
  DTensor centers;
};

class Heads : public Module {
 public:
  Heads(Module* parent, std::string name, const PerceptionConfig& config);
  Detections operator()(const DTensor& fused);
  // The cross-entropy of the classes, i32 [b], the mean square error of the centers and a little of the penalty: a scalar.
  DTensor Loss(const DTensor& fused, const DTensor& penalty, const DTensor& classes, const DTensor& centers);

  Linear scores, centers;
};

// A scene as it is measured: images f32 [b, 3, h, w], points f32 [b, n, 3].
struct Measurements {
  DTensor images;
  DTensor points;
};

class Perception : public Module {
 public:
  explicit Perception(const PerceptionConfig& config);
  Detections operator()(const Measurements& measured);
  DTensor Loss(const Measurements& measured, const DTensor& classes, const DTensor& centers);

  CameraNet camera;
  PointNet lidar;
  Fusion fusion;
  Heads heads;
};

}  // namespace weft

#endif  // WEFT_EXAMPLES_PERCEPTION_PERCEPTION_H_
