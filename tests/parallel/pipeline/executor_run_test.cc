// How the executor runs a schedule: what it holds, what it communicates, what it says of a hang, what it refuses.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/sgd.h"
#include "dtensor/optim/weight_average.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Kind = ActionKind;

struct Reading {
  PipelineAction action;
  int64_t bytes = 0;
};

// What the last rank's allocator has saved for backward after each action of a second step.
std::vector<Reading> LastRanksBytes(const std::string& schedule, int ranks, int microbatches,
                                    const Plan& plan = StagedPlan()) {
  std::vector<Reading> readings;
  RunRanks(ranks, [&](World& world) {
    Products model(2 * ranks);
    const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("pp=", ranks));
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const auto read = [&] { return world.allocator()->by_kind()[MemoryKind::kSaved].live; };
    std::vector<Reading> mine;
    int64_t before = 0;
    PipelineExecutor pipeline(model,
                              GenerateSchedule(schedule, {.ranks = ranks, .microbatches = microbatches}),
                              {.on_action = [&](const PipelineAction& action, bool begins) {
                                if (!begins) mine.push_back({action, read() - before});
                              }});
    const std::vector<Microbatch> parts = ProductParts(model.context(), microbatches);
    const DTensor total = One(model.context());
    pipeline.Run(parts, total);  // gradients have their memory from now on
    mine.clear();
    before = read();
    pipeline.Run(parts, total);
    if (world.rank() == ranks - 1) readings = std::move(mine);
  });
  return readings;
}

// Freed when the schedule says: what is saved is at each action what the microbatches in flight have, each what it has
// where there is no other. The last rank's, since what others send stays until it has left.
TEST(ExecutorRunTest, WhatIsSavedGoesAsTheScheduleSays) {
  constexpr int64_t kActivation = kRows * kDim * 8;
  for (const char* schedule : {"gpipe", "1f1b", "zb_h1", "zb_h2"}) {
    std::map<Kind, int64_t> alone;
    for (const Reading& reading : LastRanksBytes(schedule, /*ranks=*/2, /*microbatches=*/1)) {
      alone[reading.action.kind] = reading.bytes;
    }
    EXPECT_EQ(alone[Kind::kRecvForward], kActivation) << schedule;
    EXPECT_GT(alone[Kind::kForward], 2 * kActivation) << schedule;
    if (alone.count(Kind::kInputGradient) > 0) {
      EXPECT_EQ(alone[Kind::kInputGradient], 2 * kActivation) << schedule << ": x of two products";
    }
    EXPECT_EQ(alone[Kind::kReduceGrad], 0) << schedule;

    std::map<int, int64_t> held;  // by microbatch
    int64_t most = 0;
    const std::vector<Reading> readings = LastRanksBytes(schedule, /*ranks=*/2, /*microbatches=*/6);
    for (const Reading& reading : readings) {
      const Kind kind = reading.action.kind;
      if (kind == Kind::kRecvForward || IsCompute(kind)) held[reading.action.microbatch] = alone.at(kind);
      int64_t expected = 0;
      for (const auto& [microbatch, bytes] : held) expected += bytes;
      EXPECT_EQ(reading.bytes, expected) << schedule << " " << reading.action.ToString();
      most = std::max(most, reading.bytes);
    }
    EXPECT_GT(most, 0);
    if (std::string(schedule) != "gpipe") {
      EXPECT_LT(most, 4 * alone[Kind::kForward]) << schedule;
    }
  }
}

// Two layers that are computed again together keep the first one's input alone; of the last microbatch all, if the plan
// says so.
TEST(ExecutorRunTest, TheLastMicrobatchMayBeKept) {
  constexpr int64_t kActivation = kRows * kDim * 8;
  const auto after_forward = [](const std::optional<Style>& recompute) {
    Plan plan = StagedPlan();
    if (recompute) plan = plan.Merge(Plan({{"layers.*", *recompute}}));
    int64_t bytes = 0;
    for (const Reading& reading : LastRanksBytes("gpipe", /*ranks=*/2, /*microbatches=*/4, plan)) {
      if (reading.action == PipelineAction{Kind::kForward, 1, 3}) bytes = reading.bytes;
    }
    return bytes;
  };
  const int64_t keeps_all = after_forward(std::nullopt);
  EXPECT_EQ(keeps_all - after_forward(Recompute({.every = 2})), 4 * kActivation);
  EXPECT_EQ(keeps_all - after_forward(Recompute({.every = 2, .last_microbatch = false})), 3 * kActivation);
}

// Gradients of all microbatches move once.
TEST(ExecutorRunTest, GradientsAreReducedOnceAStep) {
  std::map<int, std::vector<int64_t>> bytes;  // by number of microbatches, of both steps
  for (const int microbatches : {2, 6}) {
    std::mutex mutex;
    RunRanks(4, [&](World& world) {
      Products model(4);
      Plan plan = {{"layers.*", Pipeline("pp")}, {"layers.*", FullyShard("dp")}};
      const auto context =
          Parallelize(model, world, DeviceMesh::Parse("pp=2, dp=2"), plan, {.dtype = DType::kF64});
      PipelineExecutor pipeline(model, GenerateSchedule("zb_h1", {.ranks = 2, .microbatches = microbatches}));
      const DTensor total = One(model.context());
      for (int step = 0; step < 2; ++step) {
        world.ledger().Clear();
        pipeline.Run(ProductParts(model.context(), microbatches), total);
        for (const Parameter* parameter : model.AllParameters()) parameter->grad();
        int64_t of_gradients = 0, of_parameters = 0;
        for (const LedgerEntry& entry : world.ledger().entries()) {
          if (entry.tag.purpose == static_cast<uint8_t>(Purpose::kGrad)) of_gradients += entry.num_bytes;
          if (entry.tag.purpose == static_cast<uint8_t>(Purpose::kParam)) of_parameters += entry.num_bytes;
        }
        const std::lock_guard<std::mutex> lock(mutex);
        if (world.rank() == 0)
          bytes[microbatches].insert(bytes[microbatches].end(), {of_gradients, of_parameters});
      }
    });
  }
  // Of two products of kDim x kDim: a reduce-scatter each, and a gather between UNSHARD and RESHARD.
  constexpr int64_t kWhole = 2 * kDim * kDim * 8;
  EXPECT_THAT(bytes[2], testing::ElementsAre(kWhole, kWhole, kWhole, kWhole));
  EXPECT_EQ(bytes[2], bytes[6]);
}

// Parameters are freed behind the last I: the W that follow gather nothing, hold nothing whole, and give the same gradients.
TEST(ExecutorRunTest, WeightGradientsNeedNoParameters) {
  std::map<bool, std::vector<std::vector<double>>> gradients;
  std::map<bool, int64_t> gathered, whole_at_last_weights;
  for (const bool whole_for_weights : {true, false}) {
    RunRanks(4, [&](World& world) {
      Products model(4);
      const Plan plan = {{"layers.*", Pipeline("pp")}, {"layers.*", FullyShard("dp")}};
      const auto context =
          Parallelize(model, world, DeviceMesh::Parse("pp=2, dp=2"), plan, {.dtype = DType::kF64});
      int64_t whole = 0;
      const auto on_action = [&](const PipelineAction& action, bool begins) {
        const bool is_last = action.kind == Kind::kWeightGradient && action.microbatch == 5;
        if (begins && is_last) whole = world.allocator()->by_kind()[MemoryKind::kWholeParam].live;
      };
      PipelineExecutor pipeline(
          model, GenerateSchedule("zb_h2", {.ranks = 2, .microbatches = 6}),
          {.lowering = {.whole_for_weights = whole_for_weights}, .on_action = on_action});
      world.ledger().Clear();
      pipeline.Run(ProductParts(model.context(), 6), One(model.context()));
      std::vector<std::vector<double>> mine;
      for (const Parameter* parameter : model.AllParameters()) {
        mine.push_back(parameter->grad().FullTensor().ToVector<double>());
      }
      if (world.rank() != 0) return;
      for (const LedgerEntry& entry : world.ledger().entries()) {
        const bool is_param = entry.tag.purpose == static_cast<uint8_t>(Purpose::kParam);
        if (is_param) gathered[whole_for_weights] += entry.num_bytes;
      }
      whole_at_last_weights[whole_for_weights] = whole;
      gradients[whole_for_weights] = std::move(mine);
    });
  }
  EXPECT_EQ(gradients[false], gradients[true]);
  EXPECT_EQ(gathered[false], gathered[true]);
  EXPECT_GT(gathered[true], 0);
  EXPECT_GT(whole_at_last_weights[true], 0);
  EXPECT_EQ(whole_at_last_weights[false], 0);
}

// What is trained: all by descent, or by AdamW what is not frozen.
struct Training {
  std::vector<int> frozen = {};  // layers
  bool scales = false;           // the loss
  std::set<int> halves = {};     // layers without parameters

  std::unique_ptr<Optimizer> MakeOptimizer(Products& model) const {
    if (frozen.empty()) return std::make_unique<Sgd>(model.AllParameters(), SgdOptions{.momentum = 0.5});
    for (const int layer : frozen) model.layers[layer]->set_trainable(false);
    return std::make_unique<AdamW>(model.TrainableParameters(), AdamWOptions{.weight_decay = 0.1});
  }
};

// What the optimizer is given, by step and parameter.
using Gradients = std::map<std::string, std::vector<double>>;

// Records of three steps, of one device and of stages.
std::vector<double> Trained(int ranks, const std::string& mesh_text, const std::string& schedule,
                            const Training& training = {}, Gradients* gradients = nullptr) {
  std::vector<double> outcome;
  std::mutex mutex;
  RunRanks(ranks, [&](World& world) {
    Products model(4, training.halves);
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    const bool is_staged = !schedule.empty();
    const Plan there_and_back = {{"layers.*", Pipeline("pp", {.chunks = 2, .order = StageOrder::kV})}};
    const Plan& plan = schedule == "zbv" ? there_and_back : StagedPlan();
    Parallelize(model, world, mesh, is_staged ? plan : Plan(), {.dtype = DType::kF64});
    const std::unique_ptr<Optimizer> optimizer = training.MakeOptimizer(model);
    LossScale scale(model.context(), {.initial = 8});
    WeightAverage average(model.AllParameters(), {.decay = 0.5});
    Trainer trainer(model, *optimizer,
                    {.schedule = [](int64_t) { return 0.05; },
                     .grad_clip = 0.1,
                     .loss_scale = training.scales ? &scale : nullptr,
                     .check_replicas_every = 1});
    const HookHandle keeps = optimizer->AddBeforeStep([&](const Optimizer& of) {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const Parameter* parameter : of.parameters()) {
        if (gradients == nullptr) break;
        (*gradients)[absl::StrCat(trainer.step(), " ", parameter->path())] =
            parameter->grad().ToLocal().ToVector<double>();
      }
    });
    std::optional<PipelineExecutor> pipeline;
    if (is_staged) pipeline.emplace(model, GenerateSchedule(schedule, {.ranks = ranks, .microbatches = 4}));
    std::vector<double> losses;
    const auto note = [&](const std::optional<StepMetrics>& metrics) {
      if (!metrics) return;
      losses.insert(losses.end(), {metrics->loss, metrics->grad_norm, double(metrics->num_tokens)});
      EXPECT_EQ(metrics->loss_scale, training.scales ? 8 : 0);
      EXPECT_TRUE(metrics->updated);
    };
    for (int step = 0; step < 3; ++step) {
      const auto parts = std::make_shared<std::vector<Microbatch>>(ProductParts(model.context(), 4));
      if (pipeline) {
        note(trainer.Step(*pipeline, *parts));
      } else {
        note(trainer.Step(
            4, [&](int i) { return model.CountOf((*parts)[i].targets); },
            [&model, parts](int i) {
              return model.LossOf({model((*parts)[i].inputs[0])}, (*parts)[i].targets);
            }));
      }
    }
    note(trainer.Flush());
    trainer.FindNonFinite();
    average.Update();
    average.SwapWithModel();
    average.SwapWithModel();
    EXPECT_EQ(average.State().empty(), model.AllParameters().empty());
    const std::lock_guard<std::mutex> lock(mutex);
    if (!outcome.empty()) {
      EXPECT_EQ(losses, outcome) << "ranks have different records";
    }
    outcome = losses;
  });
  return outcome;
}

TEST(ExecutorRunTest, TheTrainersRecordIsOneDevicesOnEveryRank) {
  const std::vector<double> expected = Trained(1, "", "");
  ASSERT_EQ(expected.size(), 9u);
  EXPECT_LT(expected[6], expected[0]);
  for (const char* schedule : {"1f1b", "zbv"}) {
    EXPECT_THAT(Trained(2, "pp=2", schedule), testing::Pointwise(testing::DoubleNear(1e-12), expected))
        << schedule;
  }
}

// A stage that is not trained, and an optimizer of what is: its ranks have nothing to update, and join in the norm.
TEST(ExecutorRunTest, StagesThatAreNotTrained) {
  const std::vector<std::pair<const char*, std::vector<int>>> cases = {
      {"1f1b", {0, 1}}, {"1f1b", {2, 3}}, {"zbv", {0, 3}}, {"zbv", {1, 2}}};
  for (const auto& [schedule, frozen] : cases) {
    for (const bool scales : {false, true}) {
      SCOPED_TRACE(absl::StrCat(schedule, ", without layer ", frozen[0], scales ? ", scaled" : ""));
      const Training training = {.frozen = frozen, .scales = scales};
      Gradients of_one, of_stages;
      const std::vector<double> expected = Trained(1, "", "", training, &of_one);
      EXPECT_THAT(Trained(2, "pp=2", schedule, training, &of_stages),
                  testing::Pointwise(testing::DoubleNear(1e-12), expected));
      ASSERT_EQ(of_one.size(), 6u);  // two layers, three steps
      ASSERT_EQ(of_stages.size(), of_one.size());
      for (const auto& [name, gradient] : of_one) {
        EXPECT_THAT(of_stages[name], testing::Pointwise(testing::DoubleNear(1e-12), gradient)) << name;
      }
    }
  }
}

// A stage without any parameter: its ranks join in the norm too, in the dtype of the others', and average nothing.
TEST(ExecutorRunTest, StagesWithoutParameters) {
  const std::vector<std::pair<const char*, std::set<int>>> cases = {
      {"1f1b", {0, 1}}, {"1f1b", {2, 3}}, {"zbv", {0, 3}}, {"zbv", {1, 2}}, {"1f1b", {0}}};
  for (const auto& [schedule, halves] : cases) {
    for (const bool scales : {false, true}) {
      SCOPED_TRACE(absl::StrCat(schedule, ", half at ", *halves.begin(), scales ? ", scaled" : ""));
      const Training training = {.scales = scales, .halves = halves};
      const std::vector<double> expected = Trained(1, "", "", training);
      ASSERT_EQ(expected.size(), 9u);
      EXPECT_THAT(Trained(2, "pp=2", schedule, training),
                  testing::Pointwise(testing::DoubleNear(1e-12), expected));
    }
  }
}

// A rank that stands still in an action: the watchdog says which, and in which the other one waits.
TEST(ExecutorRunTest, AHangNamesActions) {
  std::mutex mutex;
  std::string told;
  const WorldOptions options = {.watchdog = {.interval = std::chrono::milliseconds(20),
                                             .late_after = std::chrono::milliseconds(60),
                                             .tell_after = std::chrono::milliseconds(100),
                                             .tell = [&](const std::string& line) {
                                               const std::lock_guard<std::mutex> lock(mutex);
                                               absl::StrAppend(&told, line, "\n");
                                             }}};
  RunRanks(
      2,
      [&](World& world) {
        Products model(4);
        const auto context =
            Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {.dtype = DType::kF64});
        const auto stall = [&](const PipelineAction& action, bool begins) {
          if (!begins || action != PipelineAction{Kind::kInputGradient, 1, 1}) return;
          // Until it has been told.
          for (int i = 0; i < 500; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            const std::lock_guard<std::mutex> lock(mutex);
            if (told.find("I of stage 1, microbatch 1") != std::string::npos) return;
          }
        };
        PipelineExecutor pipeline(model, GenerateSchedule("zb_h1", {.ranks = 2, .microbatches = 4}),
                                  {.on_action = stall});
        pipeline.Run(ProductParts(model.context(), 4), One(model.context()));
      },
      options);
  EXPECT_THAT(told,
              testing::ContainsRegex(
                  "rank 0, in RECV_B of stage 0, microbatch 1, waits for send_recv\\(512 bytes\\) #2 on axis "
                  "pipeline 1->0 tag 1 \\(stage 0, activation\\), issued [0-9.]+ s ago; rank 1 is in I of "
                  "stage 1, microbatch 1"));
}

TEST(ExecutorRunTest, WhatCannotRunIsSaid) {
  RunRanks(2, [](World& world) {
    Products model(4);
    const DeviceMesh mesh = DeviceMesh::Parse("pp=2");
    const auto schedule = [](const char* name) {
      return GenerateSchedule(name, {.ranks = 2, .microbatches = 4});
    };
    EXPECT_THAT(
        MessageOf([&] { PipelineExecutor(model, schedule("1f1b")); }),
        HasSubstr(
            "PipelineExecutor: the model, a Products, is not cut into stages: expected one whose plan "));
    Parallelize(model, world, mesh, StagedPlan());
    EXPECT_EQ(MessageOf([&] { PipelineExecutor(model, schedule("zbv")); }),
              "schedule zbv: its stages lie on ranks [0, 1, 1, 0], those of the model on [0, 1]");
    EXPECT_EQ(
        MessageOf([&] { PipelineExecutor(model, schedule("pipedream")); }),
        "schedule pipedream updates parameters within the step (OPT): expected ExecutorOptions::update, "
        "got none");
    PipelineSchedule damaged = schedule("1f1b");
    std::swap(damaged.ranks[1][0], damaged.ranks[1][1]);
    EXPECT_THAT(MessageOf([&] { PipelineExecutor(model, damaged); }),
                HasSubstr("schedule 1f1b: rank 1, action 0"));
    PipelineExecutor pipeline(model, schedule("1f1b"));
    EXPECT_EQ(MessageOf([&] { pipeline.Run(ProductParts(model.context(), 3), One(model.context())); }),
              "schedule 1f1b is made for 4 microbatches, got 3");
    EXPECT_EQ(MessageOf([&] { pipeline.ForwardLoss({}); }),
              "ForwardLoss: expected at least one microbatch, got none");
  });
}

}  // namespace
}  // namespace weft
