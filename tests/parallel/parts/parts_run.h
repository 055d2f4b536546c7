// Training steps of a model whose parts lie on ranks of their own, beside the same steps on one device.

#ifndef WEFT_TESTS_PARALLEL_PARTS_PARTS_RUN_H_
#define WEFT_TESTS_PARALLEL_PARTS_PARTS_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/nn/module.h"
#include "mesh/device_mesh.h"
#include "parallel/plan.h"
#include "runtime/tensor/tensor.h"
#include "tests/parallel/training_run.h"

namespace weft {

// What a step is of: values of so many rows, the same on every rank.
struct PartsBatch {
  std::vector<Tensor> inputs;
  std::vector<Tensor> targets;
};

// A model of parts, and its mean loss over a batch.
class PartsModel : public Module {
 public:
  // A scalar on the model's whole mesh.
  virtual DTensor Loss(const std::vector<DTensor>& inputs, const std::vector<DTensor>& targets) = 0;
  // The modules that take the inputs, in their order, and the one that takes the targets: where these may lie at once.
  virtual std::vector<Module*> Takers() = 0;
  virtual Module* TargetTaker() = 0;
};

struct PartsRun {
  // Where inputs and targets lie before the model takes them.
  enum class Inputs {
    kWhole,  // replicated over the whole mesh
    kSplit,  // rows split over the whole mesh
    kParts,  // on the parts that take them, absent elsewhere
  };

  std::function<std::unique_ptr<PartsModel>()> make_model;
  std::function<PartsBatch(int64_t first, int64_t rows)> make_batch;  // rows of an endless data set
  DeviceMesh mesh = {};
  Plan plan = {};
  Inputs inputs = Inputs::kWhole;
  DeviceType device = DeviceType::kCpu;
  DType dtype = DType::kF64;
  bool adamw = true;                // plain descent without clipping otherwise
  bool only_trained = false;        // the optimizer has no others, and on a part without one none at all
  std::vector<int64_t> rows = {5};  // of each microbatch of a step
  int64_t steps = 2;
  // A checkpoint to begin from, at `first_step`, and where to leave one: files, or folders to which every rank writes.
  std::string load = "";
  std::string save = "";
  bool in_folders = false;
  int64_t first_step = 1;
  std::function<void(PartsModel&)> after_parallelize = nullptr;
};

// Trains, and gathers gradients of every step. Ranks check that what they have in common has the same bits: losses, norms,
// and what of a parameter several have whole.
// Errors: what ranks throw; DataLoss if ranks differ.
TrainingResult Train(const PartsRun& run);

// The same run on one device.
PartsRun OnOneDevice(PartsRun run);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PARTS_PARTS_RUN_H_
