#include "tests/parallel/parts/parts_run.h"

#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "dtensor/autograd/backward.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/sgd.h"
#include "parallel/compression/communication_state.h"
#include "parallel/parallelize.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

// What several ranks say of one thing, which has to be the same.
class Findings {
 public:
  void Take(const TrainingResult& mine) {
    const std::lock_guard<std::mutex> lock(mutex_);
    TakeTensors(mine.initial, &all_.initial);
    for (const auto& [step, tensors] : mine.gradients) TakeTensors(tensors, &all_.gradients[step]);
    TakeNumbers("losses", mine.losses, &all_.losses);
    TakeNumbers("norms", mine.grad_norms, &all_.grad_norms);
  }
  TrainingResult all() { return std::move(all_); }

 private:
  static void TakeTensors(const FullTensors& mine, FullTensors* all) {
    for (const auto& [path, values] : mine) {
      const auto [found, is_new] = all->try_emplace(path, values);
      if (is_new || found->second == values) continue;
      Throw(absl::StatusCode::kDataLoss, "ranks differ in '", path, "'");
    }
  }
  static void TakeNumbers(const char* what, const std::vector<double>& mine, std::vector<double>* all) {
    if (all->empty()) *all = mine;
    if (*all != mine) Throw(absl::StatusCode::kDataLoss, "ranks differ in their ", what);
  }

  std::mutex mutex_;
  TrainingResult all_;
};

FullTensors Gather(const std::vector<Parameter*>& parameters, bool gradients) {
  FullTensors full;
  for (const Parameter* parameter : parameters) {
    const DTensor& value = gradients ? parameter->grad() : parameter->at_rest();
    if (value.defined()) full[parameter->path()] = value.FullTensor().ToVector<double>();
  }
  return full;
}

DTensor Lay(const PartsRun& run, const IntrusivePtr<MeshContext>& whole, const Tensor& full, Module* taker) {
  const bool on_part = run.inputs == PartsRun::Inputs::kParts;
  const IntrusivePtr<MeshContext>& context = on_part ? taker->context() : whole;
  Layout layout(full.ndim(), context->mesh().num_axes());
  if (run.inputs == PartsRun::Inputs::kSplit && context->mesh().num_axes() > 0)
    layout = layout.WithShard(0, 0);
  return DTensor::Distribute(context, full, layout);
}

// Forward and backward of each microbatch; the mean loss of all rows.
DTensor RunBatch(const PartsRun& run, PartsModel& model, int64_t first) {
  const IntrusivePtr<MeshContext>& context = model.context();
  RankState& state = context->state();
  const auto total = static_cast<double>(std::accumulate(run.rows.begin(), run.rows.end(), int64_t{0}));
  DTensor sum;
  int64_t row = 0;
  for (size_t i = 0; i < run.rows.size(); ++i) {
    std::optional<NoSync> no_sync;
    if (i + 1 < run.rows.size()) no_sync.emplace(state);
    const BatchOffsetGuard offset(state, row);
    const PartsBatch batch = run.make_batch(first + row, run.rows[i]);
    std::vector<DTensor> inputs, targets;
    for (size_t k = 0; k < batch.inputs.size(); ++k) {
      inputs.push_back(Lay(run, context, batch.inputs[k], model.Takers()[k]));
    }
    for (const Tensor& target : batch.targets)
      targets.push_back(Lay(run, context, target, model.TargetTaker()));
    const DTensor loss = Scale(model.Loss(inputs, targets), static_cast<double>(run.rows[i]) / total);
    Backward(loss);
    sum = sum.defined() ? Add(sum, loss.Detach()) : loss.Detach();
    row += run.rows[i];
  }
  return sum;
}

TrainingResult TrainRank(World& world, const PartsRun& run) {
  const std::unique_ptr<PartsModel> model = run.make_model();
  const IntrusivePtr<MeshContext> context = Bind(world, run.mesh);
  context->state().set_seed(5);
  Parallelize(*model, context, run.plan, {.dtype = run.dtype});
  if (run.after_parallelize) run.after_parallelize(*model);
  const std::vector<Parameter*> parameters =
      run.only_trained ? model->TrainableParameters() : model->AllParameters();
  std::unique_ptr<Optimizer> optimizer;
  if (run.adamw) {
    optimizer = std::make_unique<AdamW>(parameters, AdamWOptions{.beta2 = 0.99, .weight_decay = 0.1});
  } else {
    optimizer = std::make_unique<Sgd>(parameters, SgdOptions());
  }
  State state;
  state.Add("model", MakeModelState(*model));
  state.Add("optimizer", MakeOptimizerState(*optimizer));
  state.Add("communication", MakeCommunicationState(*model));
  if (!run.load.empty() && run.in_folders) {
    CheckpointManager(world, {.folder = run.load}).Resume(state);
  } else if (!run.load.empty()) {
    SafetensorsReader reader(run.load);
    LoadParameters(reader, *model);
    LoadOptimizerState(reader, *optimizer);
    LoadCommunicationState(reader, *model);
  }
  TrainingResult result;
  result.initial = Gather(parameters, /*gradients=*/false);
  const int64_t rows = std::accumulate(run.rows.begin(), run.rows.end(), int64_t{0});
  for (int64_t step = run.first_step; step < run.first_step + run.steps; ++step) {
    context->state().set_step(static_cast<uint64_t>(step));
    const DTensor loss = RunBatch(run, *model, step * rows);
    // Clips to about half.
    const GlobalNorm norm = ComputeGlobalNorm(parameters, run.adamw ? 1 : 0, DTensor(), model.get());
    result.losses.push_back(loss.Item());
    result.grad_norms.push_back(std::sqrt(norm.norm_squared.Item()));
    result.gradients[step - run.first_step + 1] = Gather(parameters, /*gradients=*/true);
    optimizer->Step(run.adamw ? 1e-3 : 0.02, norm.scale);
    optimizer->ZeroGrad();
  }
  if (run.save.empty()) return result;
  if (run.in_folders) {
    CheckpointManager(world, {.folder = run.save}).Save(run.first_step + run.steps - 1, state);
  } else {
    auto tensors = CheckpointTensors(*model, *optimizer);
    for (auto& tensor : CommunicationState(*model)) tensors.push_back(std::move(tensor));
    SaveTensors(run.save, tensors, {}, model->parts());
  }
  return result;
}

}  // namespace

TrainingResult Train(const PartsRun& run) {
  Findings findings;
  RunRanks(static_cast<int>(run.mesh.num_ranks()),
           [&](World& world) { findings.Take(TrainRank(world, run)); },
           {.device = run.device, .threads_per_rank = 1, .comm_timeout = std::chrono::minutes(2)});
  return findings.all();
}

PartsRun OnOneDevice(PartsRun run) {
  run.mesh = DeviceMesh();
  run.plan = {};
  return run;
}

}  // namespace weft
