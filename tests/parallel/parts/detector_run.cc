#include "tests/parallel/parts/detector_run.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "examples/perception/perception.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

// Uniform in [-1, 1), by the number of the row alone.
Tensor Rows(absl::string_view what, int64_t first, const Shape& shape) {
  std::vector<double> values;
  const int64_t size = shape.num_elements() / std::max<int64_t>(shape[0], 1);
  for (int64_t row = first; row < first + shape[0]; ++row) {
    const RandomKey key = {.seed = 3, .stream = StreamOf(what), .step = static_cast<uint64_t>(row)};
    for (int64_t i = 0; i < size; ++i) values.push_back(2 * UniformAt(key, static_cast<uint64_t>(i)) - 1);
  }
  return Tensor::FromValues<double>(shape, values);
}

// The detector of the example.
class Detector : public PartsModel {
 public:
  DTensor Loss(const std::vector<DTensor>& inputs, const std::vector<DTensor>& targets) override {
    const ModuleCall call(*this);
    const DTensor image = camera(inputs[0]);
    const PointNet::Result cloud = lidar(inputs[1]);
    return call.Output(heads.Loss(fusion(image, cloud.features), cloud.penalty, targets[0], targets[1]));
  }
  std::vector<Module*> Takers() override { return {&camera, &lidar}; }
  Module* TargetTaker() override { return &heads; }

  PerceptionConfig config = {.width = 4, .features = 6, .classes = 5, .dropout = 0.1};
  CameraNet camera{this, "camera", config};
  PointNet lidar{this, "lidar", config};
  Fusion fusion{this, "fusion", config};
  Heads heads{this, "heads", config};
};

PartsBatch Scenes(int64_t first, int64_t rows) {
  std::vector<int32_t> classes;
  for (int64_t row = first; row < first + rows; ++row) classes.push_back(static_cast<int32_t>(row * 7 % 5));
  return {.inputs = {Rows("images", first, {rows, 3, 8, 8}), Rows("points", first, {rows, 9, 3})},
          .targets = {Tensor::FromValues<int32_t>({rows}, classes), Rows("centers", first, {rows, 3})}};
}

}  // namespace

PartsRun DetectorRun(const PerceptionMeshes& meshes) {
  PerceptionPlan spread = MakePerceptionPlan(meshes);
  PartsRun run;
  run.make_model = [] { return std::make_unique<Detector>(); };
  run.make_batch = Scenes;
  run.mesh = spread.mesh;
  run.plan = spread.plan;
  return run;
}

}  // namespace weft
