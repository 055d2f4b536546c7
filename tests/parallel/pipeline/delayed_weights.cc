#include "tests/parallel/pipeline/delayed_weights.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using Numbers = std::vector<double>;

// A layer on the device that keeps all of its versions.
struct Layer {
  Parameter* weight = nullptr;
  std::vector<Numbers> versions = {};  // by updates
  Numbers gradient = Numbers(kDim * kDim);
  Numbers momentum = Numbers(kDim * kDim);

  void Read(int version) {
    const size_t nearest = std::clamp<size_t>(version, 0, versions.size() - 1);
    const Tensor weights = Tensor::FromValues<double>({kDim, kDim}, versions[nearest]);
    weight->Load(DTensor::Distribute(weight->at_rest().context(), weights, Layout(2, 0)));
    weight->ClearGrad();
  }
  void AddGradient() {
    const Numbers term = weight->grad().ToLocal().ToVector<double>();
    for (size_t i = 0; i < term.size(); ++i) gradient[i] += term[i];
  }
  void Update() {
    Numbers next = versions.back();
    for (size_t i = 0; i < next.size(); ++i) {
      momentum[i] = kDelayedMomentum * momentum[i] + gradient[i];
      next[i] -= kDelayedRate * momentum[i];
    }
    versions.push_back(std::move(next));
    std::fill(gradient.begin(), gradient.end(), 0);
  }
};

}  // namespace

std::vector<Microbatch> DelayedJob::Parts(const IntrusivePtr<MeshContext>& context, int count) const {
  std::vector<int64_t> rows(count, kRows);
  for (int i = 0; has_uneven_rows && i < count; ++i) rows[i] = 1 + (2 * i) % 5;
  return ProductParts(context, rows);
}

std::map<std::pair<int, int>, int> VersionsRead(const PipelineSchedule& schedule) {
  std::map<std::pair<int, int>, int> read;
  for (const std::vector<ScheduleItem>& list : schedule.ranks) {
    std::map<int, int> updates;  // by stage
    for (const ScheduleItem& item : list) {
      for (const PipelineAction& action : item.actions) {
        if (action.kind == ActionKind::kOpt) ++updates[action.stage];
        if (action.kind != ActionKind::kForward) continue;
        const int group = action.microbatch / schedule.microbatches_per_update;
        read[{action.stage, action.microbatch}] =
            schedule.versions == WeightVersions::kNewest ? updates[action.stage] : std::max(0, group - 1);
      }
    }
  }
  return read;
}

TrainingResult WithDelayedWeights(const PipelineSchedule& schedule, const DelayedJob& job) {
  std::map<std::pair<int, int>, int> read = VersionsRead(schedule);
  TrainingResult result;
  RunRanks(1, [&](World& world) {
    Products model(schedule.num_stages(), /*halves=*/{}, job.dropout);
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context, {.dtype = DType::kF64});
    std::vector<Layer> layers;
    FullTensors before, after;
    for (Parameter* weight : model.AllParameters()) {
      before[weight->path()] = weight->at_rest().ToLocal().ToVector<double>();
      layers.push_back({.weight = weight, .versions = {before[weight->path()]}});
    }
    double loss = 0;
    const std::vector<Microbatch> parts = job.Parts(context, schedule.num_microbatches);
    for (int m = 0; m < schedule.num_microbatches; ++m) {
      for (size_t i = 0; i < layers.size(); ++i) layers[i].Read(read[{static_cast<int>(i), m}]);
      const BatchOffsetGuard offset(context->state(), parts[m].batch_offset);
      const DTensor of_part = model.LossOf({model(parts[m].inputs[0])}, parts[m].targets).sum;
      Backward(of_part);
      loss += of_part.Item();
      for (Layer& layer : layers) layer.AddGradient();
      if ((m + 1) % schedule.microbatches_per_update != 0 && m + 1 < schedule.num_microbatches) continue;
      for (Layer& layer : layers) layer.Update();
    }
    for (const Layer& layer : layers) after[layer.weight->path()] = layer.versions.back();
    result = DelayedResult(loss, before, after);
  });
  return result;
}

TrainingResult InStages(const PipelineSchedule& schedule, const std::string& beside, const DelayedJob& job,
                        const Style& data, const RankLauncher& launch) {
  double loss = 0;
  FullTensors before, after;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=", schedule.num_ranks(), beside));
  launch(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Products model(schedule.num_stages(), /*halves=*/{}, job.dropout);
    std::vector<PlanEntry> entries = {{"layers.*", Pipeline("pp")}};
    const Style products = job.splits_rows ? RowParallel("tp", {.output = Shard(0)}) : ColumnParallel("tp");
    if (mesh.FindAxis("tp") >= 0) entries.push_back({"layers.*", products});
    if (mesh.FindAxis("dp") >= 0) entries.push_back({"layers.*", data});
    Parallelize(model, world, mesh, Plan(entries), {.dtype = DType::kF64});
    std::map<int, std::unique_ptr<Sgd>> optimizers;
    const auto update = [&](int stage) {
      optimizers.at(stage)->Step(kDelayedRate);
      optimizers.at(stage)->ZeroGrad();
    };
    PipelineExecutor pipeline(model, schedule, {.update = update});
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      const std::vector<Parameter*> parameters = pipeline.ParametersOf(stage);
      if (parameters.empty()) continue;
      optimizers[stage] = std::make_unique<Sgd>(parameters, SgdOptions{.momentum = kDelayedMomentum});
    }
    const auto weights = [&] {
      FullTensors weights;
      for (const Parameter* parameter : model.AllParameters()) {
        weights[parameter->path()] = parameter->at_rest().FullTensor().ToVector<double>();
      }
      return weights;
    };
    const FullTensors first = weights();
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
    const std::vector<Microbatch> parts = job.Parts(model.context(), schedule.num_microbatches);
    const double of_run = pipeline.Run(parts, total).Item();
    int64_t expected_bytes = 0;
    for (const Parameter* parameter : model.AllParameters()) {
      expected_bytes += parameter->at_rest().ToLocal().num_bytes();
    }
    EXPECT_EQ(world.allocator()->by_kind()[MemoryKind::kParam].live, expected_bytes)
        << "a version that nobody reads is still here";
    const FullTensors last = weights();
    const std::lock_guard<std::mutex> lock(mutex);
    loss = of_run;
    before.insert(first.begin(), first.end());
    after.insert(last.begin(), last.end());
  });
  return DelayedResult(loss, before, after);
}

TrainingResult DelayedResult(double loss, const FullTensors& before, const FullTensors& after) {
  FullTensors changes;
  for (const auto& [path, values] : after) {
    Numbers& change = changes[path];
    for (size_t i = 0; i < values.size(); ++i) change.push_back(values[i] - before.at(path)[i]);
  }
  TrainingResult result = OneStep(loss, std::move(changes));
  result.initial = before;
  return result;
}

}  // namespace weft
