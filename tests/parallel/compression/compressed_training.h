// A training of the small GPT with compressed gradients on thread ranks: saved, resumed, and made to fail.

#ifndef WEFT_TESTS_PARALLEL_COMPRESSION_COMPRESSED_TRAINING_H_
#define WEFT_TESTS_PARALLEL_COMPRESSION_COMPRESSED_TRAINING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/nn/gpt.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/sgd.h"
#include "examples/gpt/gpt_plan.h"
#include "parallel/pipeline/executor.h"
#include "parallel/trainer.h"
#include "runtime/launch/world.h"
#include "tests/parallel/training_run.h"

namespace weft {

// Where a training runs, and by which plan of its data.
struct TrainingPlace {
  std::string mesh = "dp=2";
  DataPlan data = DataPlan::kFsdp;

  std::string ToString() const;
};

// All plans whose gradients rest split, and pipelines.
const std::vector<TrainingPlace>& TrainingPlaces();

// Without dropout, in batches of 8 rows, with Sgd. Pipelines have two microbatches.
struct CompressedTraining {
  TrainingPlace place = {};
  std::string method = "none";
  int64_t first = 1, last = 6;
  std::string save = {}, resume = {};  // files
  int64_t save_step = -1;              // behind which it is saved; -1: the last
  DType dtype = DType::kF64;
  SchedulerChoices scheduler = {};
  double loss_scale = 0;      // none
  int64_t overflow_step = 0;  // of one rank's gradient, in the last microbatch
  int64_t microbatches = 1;   // without stages
  int64_t frozen_steps = 0;   // through this one the embedding and the first block are frozen
  // The loss of this one's last microbatch throws, once. Then what was saved behind save_step is loaded, and training goes
  // on from there.
  int64_t failing_step = 0;
  // How ranks are started; by default on CPUs.
  std::function<void(int num_ranks, const std::function<void(World&)>& body)> run_ranks = nullptr;
};

struct TrainingOutcome {
  std::vector<double> losses;  // of the steps in the order in which they were made
  FullTensors parameters;
  std::map<std::string, std::vector<double>> state;                // whole: all ranks' rows
  std::vector<std::map<std::string, std::vector<double>>> states;  // after each step, of rank 0's pieces
  std::map<std::string, std::vector<double>> state_of_failure;     // the same, when a step had thrown
  std::vector<bool> updated;
  int64_t grad_bytes = 0;  // of the last step
};

TrainingOutcome TrainCompressed(const CompressedTraining& run);

// The same on one rank, by hand.
class CompressedTrainingOnRank {
 public:
  CompressedTrainingOnRank(const CompressedTraining& run, World& world);

  TrainingOutcome Go();
  void Step(int64_t step);
  Gpt& model() { return model_; }

 private:
  void Resume(const std::string& path, int64_t step);
  void Save();
  void Freeze(bool freezes);
  std::map<std::string, std::vector<double>> OwnState();
  DTensor Rows(int64_t step, int64_t first, int64_t count);

  const CompressedTraining run_;
  const DeviceMesh mesh_;
  const Plan plan_;
  Gpt model_;
  const IntrusivePtr<MeshContext> whole_;
  Sgd optimizer_;
  LossScale scale_;
  Trainer trainer_;
  std::optional<PipelineExecutor> pipeline_;
  bool fails_ = true;
};

// What is yet to be sent of a parameter of so many elements: a residual's rows, and those of what replicas sum, added up.
std::vector<double> Unsent(const TrainingOutcome& outcome, const std::string& parameter, size_t size);

// How far apart two sets of the same tensors are: the root of the sum of all squared differences.
double Distance(const FullTensors& a, const FullTensors& b);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_COMPRESSION_COMPRESSED_TRAINING_H_
