// Schedules that update within the step: every microbatch reads the weights that PipeDream's semantics give it, beside a
// single device that keeps all versions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using Kind = ActionKind;

constexpr double kRate = 0.05;

struct Outcome {
  double loss = 0;
  std::map<std::string, std::vector<double>> weights = {};
};

// How many updates have made the weights that F of each stage and microbatch reads, by the lists alone.
std::map<std::pair<int, int>, int> VersionsRead(const PipelineSchedule& schedule) {
  std::map<std::pair<int, int>, int> read;
  for (const std::vector<ScheduleItem>& list : schedule.ranks) {
    std::map<int, int> updates;  // by stage
    for (const ScheduleItem& item : list) {
      for (const PipelineAction& action : item.actions) {
        if (action.kind == Kind::kOpt) ++updates[action.stage];
        if (action.kind != Kind::kForward) continue;
        const int group = action.microbatch / schedule.microbatches_per_update;
        read[{action.stage, action.microbatch}] =
            schedule.versions == WeightVersions::kNewest ? updates[action.stage] : std::max(0, group - 1);
      }
    }
  }
  return read;
}

// What is trained beside the schedule.
struct Job {
  double dropout = 0;
  bool has_uneven_rows = false;

  // Some that two ranks do not divide, and one that leaves a rank without any.
  std::vector<Microbatch> Parts(const IntrusivePtr<MeshContext>& context, int count) const {
    std::vector<int64_t> rows(count, kRows);
    for (int i = 0; has_uneven_rows && i < count; ++i) rows[i] = 1 + (2 * i) % 5;
    return ProductParts(context, rows);
  }
};

// One layer a stage; every version of every layer is kept.
Outcome OneDevice(const PipelineSchedule& schedule, const Job& job = {}) {
  const std::map<std::pair<int, int>, int> read = VersionsRead(schedule);
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    Products model(schedule.num_stages(), /*halves=*/{}, job.dropout);
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context, {.dtype = DType::kF64});
    const std::vector<Parameter*> layers = model.AllParameters();
    std::vector<std::vector<std::vector<double>>> versions;  // by layer, by updates
    std::vector<std::vector<double>> gradients(layers.size(), std::vector<double>(kDim * kDim));
    for (const Parameter* layer : layers) {
      versions.push_back({layer->at_rest().ToLocal().ToVector<double>()});
    }
    const std::vector<Microbatch> parts = job.Parts(context, schedule.num_microbatches);
    for (int m = 0; m < schedule.num_microbatches; ++m) {
      for (size_t i = 0; i < layers.size(); ++i) {
        const std::vector<double>& version = versions[i][read.at({static_cast<int>(i), m})];
        const Tensor weights = Tensor::FromValues<double>({kDim, kDim}, version);
        layers[i]->Load(DTensor::Distribute(context, weights, Layout(2, 0)));
        layers[i]->ClearGrad();
      }
      const BatchOffsetGuard offset(context->state(), parts[m].batch_offset);
      const DTensor loss = model.LossOf({model(parts[m].inputs[0])}, parts[m].targets).sum;
      Backward(loss);
      outcome.loss += loss.Item();
      const bool ends_group = (m + 1) % schedule.microbatches_per_update == 0;
      for (size_t i = 0; i < layers.size(); ++i) {
        const std::vector<double> gradient = layers[i]->grad().ToLocal().ToVector<double>();
        std::vector<double> next = versions[i].back();
        for (size_t k = 0; k < gradient.size(); ++k) {
          gradients[i][k] += gradient[k];
          next[k] -= kRate * gradients[i][k];
        }
        if (!ends_group) continue;
        versions[i].push_back(next);
        std::fill(gradients[i].begin(), gradients[i].end(), 0);
      }
    }
    for (size_t i = 0; i < layers.size(); ++i) outcome.weights[layers[i]->path()] = versions[i].back();
  });
  return outcome;
}

// `data`: what axis dp does, of `beside`, ", dp=2"; axis tp splits the products' columns.
Outcome Pipelined(const PipelineSchedule& schedule, const std::string& beside, bool stale = false,
                  const Job& job = {}, const Style& data = FullyShard("dp")) {
  Outcome outcome;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=", schedule.num_ranks(), beside));
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Products model(schedule.num_stages(), /*halves=*/{}, job.dropout);
    std::vector<PlanEntry> entries = {{"layers.*", Pipeline("pp")}};
    if (mesh.FindAxis("tp") >= 0) entries.push_back({"layers.*", ColumnParallel("tp")});
    if (mesh.FindAxis("dp") >= 0) entries.push_back({"layers.*", data});
    Parallelize(model, world, mesh, Plan(entries), {.dtype = DType::kF64});
    std::map<int, std::unique_ptr<Sgd>> optimizers;
    int num_updates = 0;
    const auto update = [&](int stage) {
      // A mistake: an update that is left out, so that what reads it has stale weights.
      if (!stale || ++num_updates != 2) optimizers.at(stage)->Step(kRate);
      optimizers.at(stage)->ZeroGrad();
    };
    PipelineExecutor pipeline(model, schedule, {.update = update});
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      const std::vector<Parameter*> parameters = pipeline.ParametersOf(stage);
      if (!parameters.empty()) optimizers[stage] = std::make_unique<Sgd>(parameters, SgdOptions());
    }
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 1);
    const std::vector<Microbatch> parts = job.Parts(model.context(), schedule.num_microbatches);
    const double loss = pipeline.Run(parts, total).Item();
    const int64_t parameter_bytes = world.allocator()->by_kind()[MemoryKind::kParam].live;
    std::map<std::string, std::vector<double>> weights;
    int64_t expected_bytes = 0;
    for (const Parameter* parameter : model.AllParameters()) {
      weights[parameter->path()] = parameter->at_rest().FullTensor().ToVector<double>();
      expected_bytes += parameter->at_rest().ToLocal().num_bytes();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.loss = loss;
    outcome.weights.insert(weights.begin(), weights.end());
    EXPECT_EQ(parameter_bytes, expected_bytes) << "a version that nobody reads is still here";
  });
  return outcome;
}

double MostDifference(const Outcome& a, const Outcome& b) {
  double most = std::abs(a.loss - b.loss);
  EXPECT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [path, values] : a.weights) {
    for (size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(values[i] - b.weights.at(path)[i]));
    }
  }
  return most;
}

TEST(WeightVersionsTest, EveryMicrobatchReadsItsOwn) {
  for (const char* name : {"pipedream", "pipedream_2bw"}) {
    for (const int ranks : {2, 4}) {
      const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = ranks, .microbatches = 3 * ranks});
      const Outcome expected = OneDevice(schedule);
      EXPECT_LT(MostDifference(Pipelined(schedule, ""), expected), 1e-11) << name << " of " << ranks;
      EXPECT_LT(MostDifference(Pipelined(schedule, ", dp=2"), expected), 1e-11)
          << name << " fsdp of " << ranks;
      EXPECT_GT(MostDifference(Pipelined(schedule, "", /*stale=*/true), expected), 1e-6) << name;
    }
  }
}

// Beside every other parallelism, with dropout, and rows that the ranks do not divide.
TEST(WeightVersionsTest, WithWhatStandsBesideThem) {
  for (const char* name : {"pipedream", "pipedream_2bw"}) {
    const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = 2, .microbatches = 6});
    const Job job = {.dropout = 0.1, .has_uneven_rows = true};
    const Outcome expected = OneDevice(schedule, job);
    const auto difference = [&](const std::string& beside, const Style& data = FullyShard("dp")) {
      return MostDifference(Pipelined(schedule, beside, /*stale=*/false, job, data), expected);
    };
    EXPECT_LT(difference(""), 1e-11) << name;
    EXPECT_LT(difference(", dp=2", DataParallel("dp")), 1e-11) << name << " ddp";
    EXPECT_LT(difference(", dp=2"), 1e-11) << name << " fsdp";
    EXPECT_LT(difference(", tp=2"), 1e-11) << name << " tp";
    EXPECT_LT(difference(", dp=2, tp=2", DataParallel("dp")), 1e-11) << name << " ddp and tp";
    EXPECT_GT(MostDifference(OneDevice(schedule, {.has_uneven_rows = true}), expected), 1e-6) << name;
    EXPECT_GT(MostDifference(OneDevice(schedule, {.dropout = 0.1}), expected), 1e-6) << name;
  }
}

// Delays are no matter of rounding: with the newest weights everywhere, another result.
TEST(WeightVersionsTest, TheOracleSeesDelays) {
  const PipelineSchedule schedule = GenerateSchedule("pipedream_2bw", {.ranks = 4, .microbatches = 12});
  PipelineSchedule newest = schedule;
  newest.versions = WeightVersions::kNewest;
  EXPECT_GT(MostDifference(OneDevice(newest), OneDevice(schedule)), 1e-6);
}

// Where a stage lies on several ranks, its gradients rest nowhere before REDUCE_GRAD.
TEST(WeightVersionsTest, UpdatesWantReducedGradients) {
  const PipelineSchedule schedule = GenerateSchedule("pipedream", {.ranks = 2, .microbatches = 4});
  const LoweringOptions unreduced = {.reduce_gradients = false};
  for (const bool is_lowered : {false, true}) {
    const PipelineSchedule given = is_lowered ? LowerSchedule(schedule, unreduced) : schedule;
    for (const int64_t replicas : {1, 2}) {
      RunRanks(static_cast<int>(2 * replicas), [&](World& world) {
        Products model(2);
        const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=2, dp=", replicas));
        Parallelize(model, world, mesh, {{"layers.*", Pipeline("pp")}, {"layers.*", DataParallel("dp")}});
        const std::string message =
            MessageOf([&] { PipelineExecutor(model, given, {.lowering = unreduced, .update = [](int) {}}); });
        EXPECT_EQ(message, replicas == 1 ? "no error"
                                         : "schedule pipedream updates parameters within the step (OPT) of "
                                           "stages of 2 ranks each: expected REDUCE_GRAD before each OPT, "
                                           "got none");
      });
    }
  }
}

TEST(WeightVersionsTest, AVersionIsOfItsParameter) {
  RunRanks(1, [](World& world) {
    Products model(2);
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context);
    const std::vector<Parameter*> layers = model.AllParameters();
    const DTensor before = layers[0]->at_rest();
    const std::vector<float> values = before.ToLocal().ToVector<float>();
    layers[0]->Fork();
    layers[0]->Load(Full(context, DType::kF32, {kDim, kDim}, 3));
    EXPECT_EQ(before.ToLocal().ToVector<float>(), values);
    EXPECT_EQ(layers[0]->at_rest().ToLocal().ToVector<float>()[0], 3);
    const DTensor after = layers[0]->ExchangeValue(before);
    EXPECT_EQ(layers[0]->at_rest().ToLocal().ToVector<float>(), values);
    EXPECT_EQ(after.ToLocal().ToVector<float>()[0], 3);
    EXPECT_THAT(MessageOf([&] { layers[1]->ExchangeValue(before); }),
                testing::HasSubstr("': expected a version of its own value"));
  });
}

}  // namespace
}  // namespace weft
