// Training with compressed gradients that rest split, in pipelines and under a loss scale: where it gets, that its state is
// state, and that a step that overflows leaves it.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/functions.h"
#include "dtensor/inspect/comm_report.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/sgd.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "parallel/compression/communication_state.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

constexpr int64_t kBatch = 8, kSequence = 15;
constexpr const char* kMethods[] = {"bf16",         "int8",       "onebit", "topk(0.1, momentum=0.5)",
                                    "randomk(0.2)", "powersgd(2)"};

GptConfig Config() {
  GptConfig config = SmallGptConfig();
  config.dropout = 0;
  return config;
}

// Where a training runs, and by which plan of its data.
struct Place {
  std::string mesh = "dp=2";
  DataPlan data = DataPlan::kFsdp;

  std::string ToString() const { return absl::StrCat(mesh, " ", DataPlanName(data)); }
};

const std::vector<Place>& Places() {
  static const auto* const places = new std::vector<Place>{
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

Plan PlanOf(const DeviceMesh& mesh, DataPlan data, const std::string& method,
            const SchedulerChoices& scheduler = {}) {
  std::optional<PipelineOptions> pipeline;
  if (mesh.FindAxis("pp") >= 0) pipeline = PipelineOptions();
  Plan plan = GptPlan(mesh, data, /*sequence_parallel=*/false, /*blocks=*/{}, pipeline);
  plan.set_scheduler(scheduler);
  return plan.Merge(Plan{{"", Communication(method)}});
}

// A training of the small GPT, saved and resumed.
struct TrainingCase {
  Place place = {};
  std::string method = "none";
  int64_t first = 1, last = 6;
  std::string save = {}, resume = {};
  DType dtype = DType::kF64;
  SchedulerChoices scheduler = {};
  double loss_scale = 0;      // none
  int64_t overflow_step = 0;  // of one rank's gradient, in the last microbatch
  int64_t microbatches = 1;   // without stages; these have two
};

struct Outcome {
  std::vector<double> losses;
  FullTensors parameters;
  std::map<std::string, std::vector<double>> state;                // whole: all ranks' rows
  std::vector<std::map<std::string, std::vector<double>>> states;  // after each step, of rank 0's pieces
  std::vector<bool> updated;
  int64_t grad_bytes = 0;  // of the last step
};

class Training {
 public:
  Training(const TrainingCase& run, World& world)
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

  Outcome Go() {
    if (!run_.resume.empty()) Resume();
    Outcome mine;
    for (int64_t step = run_.first; step <= run_.last; ++step) {
      Step(step);
      const StepMetrics metrics = *trainer_.Flush();
      mine.losses.push_back(metrics.loss);
      mine.updated.push_back(metrics.updated);
      mine.states.emplace_back();
      for (const auto& [name, tensor] : CommunicationState(model_)) {
        mine.states.back()[name] = tensor.ToLocal().ToVector<double>();
      }
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
    if (!run_.save.empty()) Save();
    return mine;
  }

 private:
  void Resume() {
    SafetensorsReader reader(run_.resume);
    LoadParameters(reader, model_);
    LoadOptimizerState(reader, optimizer_);
    LoadCommunicationState(reader, model_);
    trainer_.set_step(run_.first - 1);
  }

  void Save() {
    auto tensors = CheckpointTensors(model_, optimizer_);
    for (const auto& tensor : CommunicationState(model_)) tensors.push_back(tensor);
    SaveTensors(run_.save, tensors, {}, model_.stages() ? &*model_.stages() : nullptr);
  }

  // Rows of step `step`'s batch.
  DTensor Rows(int64_t step, int64_t first, int64_t count) {
    std::vector<int32_t> tokens(kBatch * kSequence);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * i + 7 * step) % 257);
    const absl::Span<const int32_t> own =
        absl::MakeConstSpan(tokens).subspan(first * kSequence, count * kSequence);
    return DTensor::Distribute(model_.context(), Tensor::FromValues<int32_t>({count, kSequence}, own),
                               BatchLayout(mesh_, plan_));
  }

  void Step(int64_t step) {
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
      const bool overflows = step == run_.overflow_step && part + 1 == run_.microbatches;
      const DTensor mean = model_.Loss(rows, rows).Mean();
      if (!overflows) return mean;
      // A term of value 0 whose gradient is too large, in the first row alone, which one rank has.
      const DTensor first = Sum(Slice(model_(rows), 0, 0, 1));
      return Add(mean, Scale(Sub(first, first.Detach()), 3e37));
    });
  }

  const TrainingCase run_;
  const DeviceMesh mesh_;
  const Plan plan_;
  Gpt model_;
  const IntrusivePtr<MeshContext> whole_;
  Sgd optimizer_;
  LossScale scale_;
  Trainer trainer_;
  std::optional<PipelineExecutor> pipeline_;
};

Outcome Train(const TrainingCase& run) {
  Outcome outcome;
  std::mutex mutex;
  RunRanks(static_cast<int>(DeviceMesh::Parse(run.place.mesh).num_ranks()), [&](World& world) {
    Training training(run, world);
    Outcome mine = training.Go();
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
  });
  return outcome;
}

double Distance(const FullTensors& a, const FullTensors& b) {
  double square = 0;
  for (const auto& [path, values] : a) {
    for (size_t i = 0; i < values.size(); ++i) square += std::pow(values[i] - b.at(path)[i], 2);
  }
  return std::sqrt(square);
}

// How far training gets from one device's: of the way that the parameters have gone.
TEST(ShardedTrainingTest, TrainsNearOneDevice) {
  const Outcome begin = Train({.place = {"", DataPlan::kDdp}, .last = 0});
  const Outcome one = Train({.place = {"", DataPlan::kDdp}, .last = 10});
  const double way = Distance(one.parameters, begin.parameters);
  for (const auto& [method, bound] : std::vector<std::pair<std::string, double>>{
           {"none", 1e-12},
           {"topk(1)", 1e-6},
           {"bf16", 0.01},
           {"f16", 0.01},
           {"int8", 0.1},
           {"onebit", 0.9},
           {"topk(0.1)", 0.8},
           {"randomk(0.2)", 0.8},
           {"powersgd(2)", 0.8},
           {"powersgd(32, min_compression_rate=0.1)", 1e-3},
       }) {
    for (const Place& place : Places()) {
      const Outcome other = Train({.place = place, .method = method, .last = 10});
      EXPECT_EQ(other.parameters.size(), one.parameters.size());
      EXPECT_LE(Distance(other.parameters, one.parameters), bound * way)
          << method << " on " << place.ToString();
      EXPECT_LT(other.losses.back(), other.losses.front()) << method << " on " << place.ToString();
      EXPECT_EQ(other.state.empty(), method == "none");
    }
  }
}

// A method that has nothing to compress yet makes the sums that a plan without one makes, bit for bit.
TEST(ShardedTrainingTest, WhatIsNotCompressedIsTheExactSum) {
  for (const Place& place : Places()) {
    const Outcome none = Train({.place = place});
    const Outcome not_yet = Train({.place = place, .method = "powersgd(2, start_step=100)"});
    EXPECT_EQ(not_yet.losses, none.losses) << place.ToString();
    EXPECT_EQ(not_yet.parameters, none.parameters) << place.ToString();
    EXPECT_EQ(not_yet.grad_bytes, none.grad_bytes) << place.ToString();
    const Outcome coarse = Train({.place = place, .method = "bf16"});
    EXPECT_NE(coarse.parameters, none.parameters) << place.ToString();
  }
}

// A quarter of f64's bytes, of every gradient and in both sums.
TEST(ShardedTrainingTest, BytesAreThoseOfTheClosedForm) {
  for (const Place& place : Places()) {
    const int64_t exact = Train({.place = place, .last = 2}).grad_bytes;
    EXPECT_EQ(Train({.place = place, .method = "bf16", .last = 2}).grad_bytes * 4, exact) << place.ToString();
  }
}

TEST(ShardedTrainingTest, ValuesDependOnNoSchedule) {
  for (const std::string method : {"int8", "topk(0.1)", "powersgd(2)"}) {
    for (const Place& place : Places()) {
      const Outcome usual = Train({.place = place, .method = method});
      for (const SchedulerChoices& scheduler :
           {SchedulerChoices{.bucket_mb = 0.01}, SchedulerChoices{.overlap = false}}) {
        const Outcome other = Train({.place = place, .method = method, .scheduler = scheduler});
        const std::string text = absl::StrCat(method, " on ", place.ToString(), ": ", scheduler.ToString());
        EXPECT_EQ(other.losses, usual.losses) << text;
        EXPECT_EQ(other.parameters, usual.parameters) << text;
        EXPECT_EQ(other.state, usual.state) << text;
      }
    }
  }
}

TEST(ShardedTrainingTest, StateIsSavedAndResumed) {
  const std::string path = testing::TempDir() + "/sharded_communication.safetensors";
  for (const std::string method : kMethods) {
    for (const Place& place : Places()) {
      const TrainingCase run = {.place = place, .method = method, .dtype = DType::kF32};
      const Outcome whole = Train(run);
      TrainingCase before = run, after = run;
      before.last = 4;
      before.save = path;
      Train(before);
      after.first = 5;
      after.resume = path;
      const Outcome rest = Train(after);
      EXPECT_EQ(rest.parameters, whole.parameters) << method << " on " << place.ToString();
      EXPECT_EQ(rest.state, whole.state) << method << " on " << place.ToString();
      EXPECT_EQ(rest.state.at("communication.round"), (std::vector<double>{6}));
    }
  }
  std::remove(path.c_str());
}

// What is yet to be sent of a parameter: a residual's rows, and those of what replicas sum, added up.
std::vector<double> Unsent(const Outcome& outcome, const std::string& parameter, size_t size) {
  std::vector<double> sum(size);
  for (const std::string of : {"", "replicas."}) {
    const auto found = outcome.state.find(absl::StrCat("communication.", parameter, ".", of, "residual"));
    if (found == outcome.state.end()) continue;
    for (size_t i = 0; i < found->second.size(); ++i) sum[i % size] += found->second[i];
  }
  return sum;
}

TEST(ShardedTrainingTest, OtherPlansKeepWhatIsYetToBeSent) {
  const std::string path = testing::TempDir() + "/sharded_communication_place.safetensors";
  std::vector<Place> places = Places();
  places.push_back({"dp=2", DataPlan::kDdp});
  places.push_back({"replica=3,shard=2", DataPlan::kHsdp});
  for (const std::string method : {"topk(0.1)", "int8"}) {
    for (const Place& from : {Place{"dp=4", DataPlan::kFsdp}, Place{"replica=2,shard=2", DataPlan::kHsdp},
                              Place{"pp=2,dp=2", DataPlan::kFsdp}}) {
      const Outcome saved = Train({.place = from, .method = method, .last = 4, .save = path});
      for (const Place& to : places) {
        const std::string text = absl::StrCat(method, " from ", from.ToString(), " to ", to.ToString());
        const Outcome loaded = Train({.place = to, .method = method, .first = 5, .last = 4, .resume = path});
        EXPECT_EQ(loaded.parameters, saved.parameters) << text;
        double largest = 0;
        for (const auto& [parameter, values] : saved.parameters) {
          const std::vector<double> before = Unsent(saved, parameter, values.size());
          const std::vector<double> after = Unsent(loaded, parameter, values.size());
          for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_NEAR(after[i], before[i], 1e-15) << text << ": " << parameter;
            largest = std::max(largest, std::abs(before[i]));
          }
        }
        EXPECT_GT(largest, 1e-6) << text;
        EXPECT_EQ(loaded.state.at("communication.round"), (std::vector<double>{4})) << text;
        const Outcome on = Train({.place = to, .method = method, .first = 5, .last = 8, .resume = path});
        EXPECT_LT(on.losses.back(), saved.losses.front()) << text;
      }
    }
  }
  std::remove(path.c_str());
}

// In f32 a scale that is a power of two, and grows, changes no bit of what is trained or kept.
TEST(ShardedTrainingTest, ALossScaleIsNotSeen) {
  std::vector<Place> places = Places();
  places.push_back({"dp=2", DataPlan::kDdp});
  for (const std::string method : kMethods) {
    for (const Place& place : places) {
      const Outcome plain = Train({.place = place, .method = method, .dtype = DType::kF32});
      const Outcome scaled =
          Train({.place = place, .method = method, .dtype = DType::kF32, .loss_scale = 1024});
      EXPECT_EQ(scaled.parameters, plain.parameters) << method << " on " << place.ToString();
      EXPECT_EQ(scaled.state, plain.state) << method << " on " << place.ToString();
    }
  }
}

// An overflow on one rank: the step is skipped everywhere, what is kept is as it was before, and training goes on.
TEST(ShardedTrainingTest, AnOverflowLeavesWhatIsKept) {
  for (const std::string method : kMethods) {
    for (const Place& place :
         {Place{"dp=2", DataPlan::kDdp}, Place{"dp=3", DataPlan::kFsdp}, Place{"dp=2", DataPlan::kZero2},
          Place{"replica=2,shard=2", DataPlan::kHsdp}}) {
      const std::string text = absl::StrCat(method, " on ", place.ToString());
      const Outcome outcome = Train({.place = place,
                                     .method = method,
                                     .dtype = DType::kF32,
                                     .loss_scale = 65536,
                                     .overflow_step = 3,
                                     .microbatches = 2});
      EXPECT_EQ(outcome.updated, (std::vector<bool>{true, true, false, true, true, true})) << text;
      for (const auto& [name, values] : outcome.states[2]) {
        if (name == "communication.round") continue;
        EXPECT_EQ(values, outcome.states[1].at(name)) << text << ": " << name;
      }
      EXPECT_NE(outcome.states[3], outcome.states[2]) << text;
      for (const auto& [name, values] : outcome.state) {
        for (const double value : values) ASSERT_TRUE(std::isfinite(value)) << text << ": " << name;
      }
      for (const double loss : outcome.losses) EXPECT_TRUE(std::isfinite(loss)) << text;
    }
  }
}

}  // namespace
}  // namespace weft
