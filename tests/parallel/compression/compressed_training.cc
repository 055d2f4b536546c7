#include "tests/parallel/compression/compressed_training.h"

#include <cmath>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/functions.h"
#include "dtensor/inspect/comm_report.h"
#include "gtest/gtest.h"
#include "parallel/compression/communication_state.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/generator.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

constexpr int64_t kBatch = 8, kSequence = 15;

GptConfig Config() {
  GptConfig config = SmallGptConfig();
  config.dropout = 0;
  return config;
}

Plan PlanOf(const DeviceMesh& mesh, DataPlan data, const std::string& method,
            const SchedulerChoices& scheduler) {
  std::optional<PipelineOptions> pipeline;
  if (mesh.FindAxis("pp") >= 0) pipeline = PipelineOptions();
  Plan plan = GptPlan(mesh, data, /*sequence_parallel=*/false, /*blocks=*/{}, pipeline);
  plan.set_scheduler(scheduler);
  return plan.Merge(Plan{{"", Communication(method)}});
}

}  // namespace

std::string TrainingPlace::ToString() const { return absl::StrCat(mesh, " ", DataPlanName(data)); }

const std::vector<TrainingPlace>& TrainingPlaces() {
  static const auto* const places = new std::vector<TrainingPlace>{
      {"dp=3", DataPlan::kZero1},
      {"dp=2", DataPlan::kZero2},
      {"dp=3", DataPlan::kFsdp},
      {"dp=2,tp=2", DataPlan::kFsdp},
      {"replica=2,shard=2", DataPlan::kHsdp},
      {"pp=2,dp=2", DataPlan::kDdp},
      {"pp=2,dp=2", DataPlan::kFsdp},
  };
  return *places;
}

CompressedTrainingOnRank::CompressedTrainingOnRank(const CompressedTraining& run, World& world)
    : run_(run),
      mesh_(DeviceMesh::Parse(run.place.mesh)),
      plan_(PlanOf(mesh_, run.place.data, run.method, run.scheduler)),
      model_(Config()),
      whole_(Parallelize(model_, world, mesh_, plan_, {.dtype = run.dtype})),
      optimizer_(model_.AllParameters(), {}),
      scale_(model_.context(), {.initial = run.loss_scale > 0 ? run.loss_scale : 1, .interval = 2}),
      trainer_(model_, optimizer_,
               {.schedule = [](int64_t) { return 0.05; },
                .grad_clip = 0,
                .loss_scale = run.loss_scale > 0 ? &scale_ : nullptr}) {
  if (mesh_.FindAxis("pp") < 0) return;
  pipeline_.emplace(model_, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
}

TrainingOutcome CompressedTrainingOnRank::Go() {
  const int64_t save_step = run_.save_step >= 0 ? run_.save_step : run_.last;
  if (!run_.resume.empty()) Resume(run_.resume, run_.first - 1);
  TrainingOutcome mine;
  for (int64_t step = run_.first; step <= run_.last; ++step) {
    if (step == run_.failing_step && fails_) {
      EXPECT_THROW(Step(step), Error);
      fails_ = false;
      mine.state_of_failure = OwnState();
      Resume(run_.save, save_step);
      step = save_step;
      continue;
    }
    Step(step);
    const StepMetrics metrics = *trainer_.Flush();
    mine.losses.push_back(metrics.loss);
    mine.updated.push_back(metrics.updated);
    mine.states.push_back(OwnState());
    if (step == save_step && fails_ && !run_.save.empty()) Save();
  }
  for (const CommRow& row : CollectCommReport(*model_.context()).rows) {
    if (row.purpose == "grad") mine.grad_bytes += row.num_bytes;
  }
  for (const Parameter* parameter : model_.AllParameters()) {
    mine.parameters[parameter->path()] = parameter->at_rest().FullTensor().ToVector<double>();
  }
  for (const auto& [name, tensor] : CommunicationState(model_)) {
    mine.state[name] = tensor.FullTensor().ToVector<double>();
  }
  return mine;
}

std::map<std::string, std::vector<double>> CompressedTrainingOnRank::OwnState() {
  std::map<std::string, std::vector<double>> state;
  for (const auto& [name, tensor] : CommunicationState(model_)) {
    state[name] = tensor.ToLocal().ToVector<double>();
  }
  return state;
}

void CompressedTrainingOnRank::Resume(const std::string& path, int64_t step) {
  SafetensorsReader reader(path);
  LoadParameters(reader, model_);
  LoadOptimizerState(reader, optimizer_);
  LoadCommunicationState(reader, model_);
  trainer_.set_step(step);
}

void CompressedTrainingOnRank::Save() {
  auto tensors = CheckpointTensors(model_, optimizer_);
  for (const auto& tensor : CommunicationState(model_)) tensors.push_back(tensor);
  SaveTensors(run_.save, tensors, {}, model_.stages() ? &*model_.stages() : nullptr);
}

void CompressedTrainingOnRank::Freeze(bool freezes) {
  for (Parameter* parameter : model_.RegisteredParameters()) {
    const std::string path = parameter->path();
    if (absl::StartsWith(path, "w") || absl::StartsWith(path, "blocks.0")) parameter->set_trainable(!freezes);
  }
}

// Rows of step `step`'s batch.
DTensor CompressedTrainingOnRank::Rows(int64_t step, int64_t first, int64_t count) {
  std::vector<int32_t> tokens(kBatch * kSequence);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * i + 7 * step) % 257);
  const absl::Span<const int32_t> own =
      absl::MakeConstSpan(tokens).subspan(first * kSequence, count * kSequence);
  return DTensor::Distribute(model_.context(), Tensor::FromValues<int32_t>({count, kSequence}, own),
                             BatchLayout(mesh_, plan_));
}

void CompressedTrainingOnRank::Step(int64_t step) {
  if (run_.frozen_steps > 0) Freeze(step <= run_.frozen_steps);
  if (pipeline_) {
    std::vector<Microbatch> parts;
    for (const int64_t first : {int64_t{0}, kBatch / 2}) {
      const DTensor rows = Rows(step, first, kBatch / 2);
      parts.push_back({.inputs = {rows}, .targets = rows, .batch_offset = first});
    }
    trainer_.Step(*pipeline_, std::move(parts));
    return;
  }
  const int64_t count = kBatch / run_.microbatches;
  const auto rows_of = [count](int) { return count; };
  trainer_.Step(static_cast<int>(run_.microbatches), rows_of, [this, step, count](int part) {
    const BatchOffsetGuard offset(model_.context()->state(), part * count);
    const DTensor rows = Rows(step, part * count, count);
    const bool is_last = part + 1 == run_.microbatches;
    if (is_last && step == run_.failing_step && fails_) Throw(absl::StatusCode::kInternal, "no loss");
    const DTensor mean = model_.Loss(rows, rows).Mean();
    if (!is_last || step != run_.overflow_step) return mean;
    // A term of value 0 whose gradient is too large, in the first row alone, which one rank has.
    const DTensor first = Sum(Slice(model_(rows), 0, 0, 1));
    return Add(mean, Scale(Sub(first, first.Detach()), 3e37));
  });
}

TrainingOutcome TrainCompressed(const CompressedTraining& run) {
  TrainingOutcome outcome;
  std::mutex mutex;
  const auto num_ranks = static_cast<int>(DeviceMesh::Parse(run.place.mesh).num_ranks());
  const auto body = [&](World& world) {
    CompressedTrainingOnRank training(run, world);
    TrainingOutcome mine = training.Go();
    const std::lock_guard<std::mutex> lock(mutex);
    // Each stage has its own.
    if (world.rank() == 0) {
      mine.parameters.merge(outcome.parameters);
      mine.state.merge(outcome.state);
      outcome = std::move(mine);
    } else {
      outcome.parameters.merge(mine.parameters);
      outcome.state.merge(mine.state);
    }
  };
  run.run_ranks ? run.run_ranks(num_ranks, body) : RunRanks(num_ranks, body);
  return outcome;
}

std::vector<double> Unsent(const TrainingOutcome& outcome, const std::string& parameter, size_t size) {
  std::vector<double> sum(size);
  for (const std::string of : {"", "replicas."}) {
    const auto found = outcome.state.find(absl::StrCat("communication.", parameter, ".", of, "residual"));
    if (found == outcome.state.end()) continue;
    for (size_t i = 0; i < found->second.size(); ++i) sum[i % size] += found->second[i];
  }
  return sum;
}

double Distance(const FullTensors& a, const FullTensors& b) {
  double square = 0;
  for (const auto& [path, values] : a) {
    for (size_t i = 0; i < values.size(); ++i) square += std::pow(values[i] - b.at(path)[i], 2);
  }
  return std::sqrt(square);
}

}  // namespace weft
