// What a stage hands on is told once for each kind of microbatch: what sets kinds apart, and what may not change of one.

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/nn/module.h"
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

using testing::HasSubstr;

constexpr int kMicrobatches = 3;
// Of two steps: which microbatches' inputs want a gradient, of a first layer that is not trained.
constexpr bool kWants[2][kMicrobatches] = {{false, true, false}, {true, false, true}};

// By step: the gradients of the inputs that want one, and that of the second layer.
struct Outcome {
  std::vector<std::vector<double>> of_inputs;
  std::vector<std::vector<double>> of_weights;
};

std::vector<Microbatch> PartsOf(int step, const IntrusivePtr<MeshContext>& context) {
  std::vector<Microbatch> parts = ProductParts(context, kMicrobatches);
  for (int i = 0; i < kMicrobatches; ++i) {
    if (kWants[step][i]) parts[i].inputs[0] = parts[i].inputs[0].RequiresGrad();
  }
  return parts;
}

void NoteInputs(const std::vector<Microbatch>& parts, Outcome* outcome) {
  for (const Microbatch& part : parts) {
    if (part.inputs[0].requires_grad()) {
      outcome->of_inputs.push_back(part.inputs[0].grad().ToLocal().ToVector<double>());
    }
  }
}

void NoteWeight(Products& model, Outcome* outcome) {
  Parameter& weight = model.layers[1]->weight;
  outcome->of_weights.push_back(weight.grad().ToLocal().ToVector<double>());
  weight.ClearGrad();
}

Outcome OneDevice() {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    Products model(2);
    model.layers[0]->set_trainable(false);
    const auto context = Parallelize(model, world, DeviceMesh(), {}, {.dtype = DType::kF64});
    for (const int step : {0, 1}) {
      const std::vector<Microbatch> parts = PartsOf(step, context);
      for (const Microbatch& part : parts) {
        Backward(model.LossOf({model(part.inputs[0])}, part.targets).sum);
      }
      NoteInputs(parts, &outcome);
      NoteWeight(model, &outcome);
    }
  });
  return outcome;
}

// The first stage has the inputs' gradients, the second one the weights'.
Outcome TwoStages(const std::string& schedule) {
  Outcome outcome;
  const auto run = [&](World& world) {
    Products model(2);
    model.layers[0]->set_trainable(false);
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule(schedule, {.ranks = 2, .microbatches = kMicrobatches}));
    for (const int step : {0, 1}) {
      const std::vector<Microbatch> parts = PartsOf(step, model.context());
      pipeline.Run(parts, One(model.context()));
      if (world.rank() == 0) {
        NoteInputs(parts, &outcome);
      } else {
        NoteWeight(model, &outcome);
      }
    }
  };
  RunRanks(2, run, {.comm_timeout = std::chrono::seconds(30)});
  return outcome;
}

void ExpectNear(const std::vector<std::vector<double>>& actual,
                const std::vector<std::vector<double>>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_THAT(actual[i], testing::Pointwise(testing::DoubleNear(1e-12), expected[i])) << i;
  }
}

// Inputs of one type, of which some want a gradient: a frozen stage hands on what wants one, or what does not.
TEST(StageMessagesTest, SomeInputsWantAGradient) {
  const Outcome expected = OneDevice();
  ASSERT_EQ(expected.of_inputs.size(), 3u);
  ASSERT_EQ(expected.of_weights.size(), 2u);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    SCOPED_TRACE(schedule);
    const Outcome actual = TwoStages(schedule);
    ExpectNear(actual.of_inputs, expected.of_inputs);
    ExpectNear(actual.of_weights, expected.of_weights);
  }
}

// Of each layer; empty: none, or zeros.
using LayerGradients = std::vector<std::vector<double>>;

// Of four layers, where the output of layer `detached` loses its history.
LayerGradients BehindADetach(int detached, const char* mesh_text, const Plan& plan,
                             const std::string& schedule) {
  LayerGradients gradients(4);
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  const auto run = [&](World& world) {
    Products model(4);
    Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const HookHandle hook =
        model.layers[detached]->AddAfterForward([](Module&, const DTensor& y) { return y.Detach(); });
    const std::vector<Microbatch> parts = ProductParts(model.context(), kMicrobatches);
    if (schedule.empty()) {
      for (const Microbatch& part : parts) Backward(model.LossOf({model(part.inputs[0])}, part.targets).sum);
    } else {
      const ScheduleSize size = {.ranks = world.size(), .microbatches = kMicrobatches};
      PipelineExecutor(model, GenerateSchedule(schedule, size)).Run(parts, One(model.context()));
    }
    for (int layer = 0; layer < 4; ++layer) {
      const Parameter& weight = model.layers[layer]->weight;
      if (!weight.is_here() || !weight.grad().defined()) continue;
      const std::vector<double> values = weight.grad().ToLocal().ToVector<double>();
      if (values != std::vector<double>(values.size(), 0)) gradients[layer] = values;
    }
  };
  RunRanks(static_cast<int>(mesh.num_ranks()), run, {.comm_timeout = std::chrono::seconds(30)});
  return gradients;
}

// A stage whose outputs have no history has no gradient for what it was given: the stages before it are not trained, those
// behind it are. To a stage on another rank, and to one on its own: under "zbv" stages 1 and 2 are on one.
TEST(StageMessagesTest, AStageWithoutAHistoryHandsZerosBack) {
  const Plan there_and_back = {{"layers.*", Pipeline("pp", {.chunks = 2, .order = StageOrder::kV})}};
  for (const int detached : {1, 2}) {
    const LayerGradients expected = BehindADetach(detached, "", {}, "");
    for (int layer = 0; layer < 4; ++layer) EXPECT_EQ(expected[layer].empty(), layer <= detached) << layer;
    for (const char* schedule : {"1f1b", "zb_h1"}) {
      SCOPED_TRACE(schedule);
      ExpectNear(BehindADetach(detached, "pp=4", StagedPlan(), schedule), expected);
    }
    ExpectNear(BehindADetach(detached, "pp=2", there_and_back, "zbv"), expected);
  }
}

// Of three microbatches, of which the second has a mask: the loss, each output and, of the layers here, the gradients.
std::map<std::string, std::vector<double>> StepOfMasked(const char* mesh, const Plan& plan,
                                                        const std::string& schedule) {
  std::map<std::string, std::vector<double>> values;
  std::mutex mutex;
  const auto run = [&](World& world) {
    MaskedProducts model;
    Parallelize(model, world, DeviceMesh::Parse(mesh), plan, {.dtype = DType::kF64});
    std::map<std::string, std::vector<double>> mine;
    std::vector<Microbatch> parts = ProductParts(model.context(), kMicrobatches);
    for (Microbatch& part : parts) part.inputs.push_back(&part == &parts[1] ? part.targets : DTensor());
    if (schedule.empty()) {
      for (size_t i = 0; i < parts.size(); ++i) {
        const ModuleCall call(model);
        const DTensors made = model.RunSegments(0, 2, call.Inputs(parts[i].inputs));
        const DTensor loss = model.LossOf(made, parts[i].targets).sum;
        Backward(loss);
        mine["loss"].push_back(loss.Item());
        mine[absl::StrCat("output ", i)] = made[0].FullTensor().ToVector<double>();
      }
    } else {
      const ScheduleSize size = {.ranks = world.size(), .microbatches = kMicrobatches};
      PipelineExecutor pipeline(model, GenerateSchedule(schedule, size));
      const double loss = pipeline.Run(parts, One(model.context())).Item();
      double sum = 0;
      for (const Microbatch& part : parts) {
        mine["loss"].push_back(pipeline.ForwardLoss(absl::MakeConstSpan(&part, 1)).sum.Item());
        sum += mine["loss"].back();
      }
      EXPECT_NEAR(loss, sum, 1e-9 * sum);
      for (size_t i = 0; i < parts.size(); ++i) {
        const DTensors made = pipeline.ForwardOutputs(parts[i].inputs);
        EXPECT_EQ(made[1].defined(), i == 1);
        mine[absl::StrCat("output ", i)] = made[0].FullTensor().ToVector<double>();
      }
    }
    for (const Parameter* parameter : model.AllParameters()) {
      mine[parameter->path()] = parameter->grad().FullTensor().ToVector<double>();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    values.insert(mine.begin(), mine.end());
  };
  RunRanks(static_cast<int>(DeviceMesh::Parse(mesh).num_ranks()), run,
           {.comm_timeout = std::chrono::seconds(30)});
  return values;
}

// To a stage on another rank, and to one on its own.
TEST(StageMessagesTest, WhatIsUndefinedIsHandedOnSo) {
  const std::map<std::string, std::vector<double>> expected = StepOfMasked("", {}, "");
  ASSERT_EQ(expected.size(), 1u + 3 + 4);
  const Plan in_turn = {{"layers.*", Pipeline("pp", {.chunks = 2})}};
  const std::map<std::string, std::map<std::string, std::vector<double>>> actual = {
      {"1f1b", StepOfMasked("pp=2", StagedPlan(), "1f1b")},
      {"zb_h1", StepOfMasked("pp=2", StagedPlan(), "zb_h1")},
      {"looped_bfs", StepOfMasked("pp=1", in_turn, "looped_bfs")},
  };
  for (const auto& [schedule, values] : actual) {
    ASSERT_EQ(values.size(), expected.size()) << schedule;
    for (const auto& [name, numbers] : expected) {
      EXPECT_THAT(values.at(name), testing::Pointwise(testing::DoubleNear(1e-9), numbers))
          << schedule << ": " << name;
    }
  }
}

// The same where what segments make is computed again in backward: of two on one device, and of each on its rank.
TEST(StageMessagesTest, WhatIsUndefinedMayBeComputedAgain) {
  const Plan again = {{"layers.*", Recompute({.every = 2})}};
  const std::map<std::string, std::vector<double>> expected = StepOfMasked("", {}, "");
  EXPECT_EQ(StepOfMasked("", again, ""), expected);
  for (const char* schedule : {"1f1b", "zb_h1"}) {
    const std::map<std::string, std::vector<double>> actual =
        StepOfMasked("pp=2", StagedPlan().Merge(again), schedule);
    ASSERT_EQ(actual.size(), expected.size()) << schedule;
    for (const auto& [name, numbers] : expected) {
      EXPECT_THAT(actual.at(name), testing::Pointwise(testing::DoubleNear(1e-9), numbers))
          << schedule << ": " << name;
    }
  }
}

// A hook that is hung between two runs makes other outputs of inputs alike: the next stage does not know, and another executor
// tells it.
TEST(StageMessagesTest, WhatIsNoLongerHandedOnAsBeforeIsSaid) {
  for (const bool makes_another : {false, true}) {
    const auto run = [&](World& world) {
      Products model(2);
      Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {.dtype = DType::kF64});
      const PipelineSchedule schedule = GenerateSchedule("1f1b", {.ranks = 2, .microbatches = kMicrobatches});
      const std::vector<Microbatch> parts = ProductParts(model.context(), kMicrobatches);
      const DTensor total = One(model.context());
      PipelineExecutor pipeline(model, schedule);
      const double loss = pipeline.Run(parts, total).Item();
      const HookHandle hook =
          model.layers[0]->AddAfterForward([](Module&, const DTensor& y) { return y.Detach(); });
      if (!makes_another) pipeline.Run(parts, total);
      PipelineExecutor another(model, schedule);
      EXPECT_EQ(another.Run(parts, total).Item(), loss);
    };
    const std::string message =
        MessageOf([&] { RunRanks(2, run, {.comm_timeout = std::chrono::seconds(30)}); });
    if (makes_another) {
      EXPECT_EQ(message, "no error");
    } else {
      EXPECT_THAT(message, HasSubstr("pipeline: stage 0 hands on f64[4, 16] "));
      EXPECT_THAT(message, HasSubstr(", and before, of inputs alike, f64[4, 16] "));
      EXPECT_THAT(message, HasSubstr(" with gradient: expected the same, which the next stage waits for"));
    }
  }
}

}  // namespace
}  // namespace weft
