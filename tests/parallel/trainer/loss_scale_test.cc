// The loss scale of f16.

#include "dtensor/optim/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"
#include "tests/parallel/pipeline/products.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using testing::HasSubstr;

constexpr GptConfig kConfig = {.vocabulary = 64, .context = 16, .layers = 1, .heads = 4, .dim = 32};

// torch.amp.GradScaler's rule, in numbers.
TEST(LossScaleTest, FollowsTheRule) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    constexpr int kInterval = 3;
    LossScale scale(context, {.initial = 1024, .interval = kInterval});
    double expected = 1024;
    int good = 0;
    const double bad[] = {INFINITY, NAN, -INFINITY};
    for (int step = 0; step < 40; ++step) {
      const bool overflows = step % 7 == 4 || step % 11 == 9;
      scale.Update(Full(context, DType::kF32, Shape(), overflows ? bad[step % 3] : 1.5));
      good = overflows ? 0 : good + 1;
      if (overflows) expected *= 0.5;
      if (good == kInterval) {
        expected *= 2;
        good = 0;
      }
      EXPECT_EQ(scale.value().Item(), expected) << "step " << step;
      EXPECT_EQ(scale.State()[1].second.Item(), good) << "step " << step;
    }
    LossScale large(context, {.initial = 3e38, .interval = 1});
    large.Update(Full(context, DType::kF32, Shape(), 1));
    EXPECT_EQ(large.value().Item(), static_cast<double>(3e38f));
    EXPECT_THAT(MessageOf([&] { LossScale(context, {.growth = 1}); }),
                HasSubstr("growth: expected a number above 1"));
  });
}

// DeepSpeed's DynamicLossScaler.update_scale, without consecutive_hysteresis, in its own terms; a state half way goes on.
TEST(LossScaleTest, HysteresisAndAFloorAreDeepSpeeds) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    for (const int delayed_shift : {1, 2, 3}) {
      const LossScaleOptions options = {.initial = 16, .interval = 4, .min = 3, .hysteresis = delayed_shift};
      LossScale scale(context, options);
      EXPECT_EQ(scale.State().size(), delayed_shift == 1 ? 2u : 3u);
      double cur_scale = 16;
      int cur_hysteresis = delayed_shift, last_overflow_iter = -1;
      int num_at_floor = 0, num_borne = 0;
      for (int cur_iter = 0; cur_iter < 120; ++cur_iter) {
        // Overflows come one at a time, later close together.
        const bool overflow =
            cur_iter < 60 ? cur_iter % 6 == 1 || cur_iter % 11 == 2 : cur_iter % 3 != 0 && cur_iter < 90;
        if (overflow) {
          if (delayed_shift == 1 || cur_hysteresis == 1) {
            cur_scale = std::max(cur_scale / 2, 3.0);
          } else {
            --cur_hysteresis;
            ++num_borne;
          }
          last_overflow_iter = cur_iter;
        } else if ((cur_iter - last_overflow_iter) % 4 == 0) {
          cur_hysteresis = delayed_shift;
          cur_scale *= 2;
        }
        num_at_floor += cur_scale == 3;
        if (cur_iter % 17 == 5) {  // resumed
          LossScale next(context, options);
          for (size_t i = 0; i < scale.State().size(); ++i) {
            CopyTensor(scale.State()[i].second.ToLocal(), next.State()[i].second.ToLocal());
          }
          next.Update(Full(context, DType::kF32, Shape(), overflow ? INFINITY : 1));
          EXPECT_EQ(next.value().Item(), cur_scale) << "iteration " << cur_iter;
        }
        scale.Update(Full(context, DType::kF32, Shape(), overflow ? INFINITY : 1));
        ASSERT_EQ(scale.value().Item(), cur_scale) << delayed_shift << ", iteration " << cur_iter;
      }
      EXPECT_GT(num_at_floor, 0);
      EXPECT_EQ(num_borne > 0, delayed_shift > 1);
    }
  });
}

TEST(LossScaleTest, AFixedScaleStays) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    LossScale scale(context, {.initial = 128, .interval = 0});
    for (const double norm : {1.0, static_cast<double>(INFINITY), 1.0}) {
      scale.Update(Full(context, DType::kF32, Shape(), norm));
      EXPECT_EQ(scale.value().Item(), 128);
    }
    // What a run with another scale had saved.
    CopyTensor(Full(context, DType::kF32, Shape(), 4096).ToLocal(), scale.State()[0].second.ToLocal());
    scale.Update(Full(context, DType::kF32, Shape(), 1));
    EXPECT_EQ(scale.value().Item(), 128);
  });
}

TEST(LossScaleTest, OptionsThatMakeNoScaleAreRefused) {
  RunRanks(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh());
    const auto message = [&](const LossScaleOptions& options) {
      return InvalidArgumentMessage([&] { LossScale(context, options); });
    };
    EXPECT_EQ(message({.initial = INFINITY}),
              "LossScale: initial: expected a number above 0 that f32 holds, got inf");
    EXPECT_EQ(message({.initial = 1e39}),
              "LossScale: initial: expected a number above 0 that f32 holds, got 1e+39");
    EXPECT_THAT(message({.initial = NAN}),
                HasSubstr("LossScale: initial: expected a number above 0 that f32 holds"));
    EXPECT_EQ(message({.growth = INFINITY}), "LossScale: growth: expected a number above 1, got inf");
    EXPECT_EQ(message({.min = 1e6}),
              "LossScale: min: expected a number from 0 to the initial scale, got 1e+06");
    EXPECT_EQ(message({.interval = -1}), "LossScale: interval: expected at least 0, got -1");
    EXPECT_EQ(message({.hysteresis = 0}), "LossScale: hysteresis: expected at least 1, got 0");
  });
}

// A training in f16 whose loss overflows on one rank in step 3.
struct Outcome {
  std::vector<double> losses, scales;
  std::vector<bool> updated;
  std::vector<int64_t> updates;
  FullTensors parameters;
  bool operator==(const Outcome&) const = default;
};

struct ScaledRun {
  std::string mesh = "dp=2";
  std::string plan = "ddp";
  int64_t steps = 6;
  std::string save = {}, resume = {};  // after and before all steps
  int64_t first = 1;
  bool overflows = true;
};

Outcome TrainScaled(const ScaledRun& run) {
  Outcome outcome;
  const DeviceMesh mesh = DeviceMesh::Parse(run.mesh);
  RunRanks(mesh.num_ranks(), [&](World& world) {
    Gpt model(kConfig);
    const Plan plan = DataPlanNamed(run.plan, mesh);
    const auto context = Parallelize(model, world, mesh, plan, {.compute_dtype = DType::kF16});
    AdamW optimizer(model.AllParameters(), {});
    LossScale scale(model.context(), {.initial = 4096, .interval = 2});
    Trainer trainer(model, optimizer, {.schedule = [](int64_t) { return 1e-3; }, .loss_scale = &scale});
    if (!run.resume.empty()) {
      SafetensorsReader reader(run.resume);
      LoadParameters(reader, model);
      LoadOptimizerState(reader, optimizer);
      LoadTensors(reader, scale.State());
      trainer.set_step(run.first - 1);
    }
    Layout rows(2, mesh.num_axes());
    if (mesh.FindAxis("dp") >= 0) rows = rows.WithShard(mesh.FindAxis("dp"), 0);
    const DTensor tokens =
        DTensor::Distribute(context, Tensor::FromValues<int32_t>({4, 8}, std::vector<int32_t>(32, 1)), rows);
    Outcome mine;
    const auto take = [&](const std::optional<StepMetrics>& metrics) {
      if (!metrics) return;
      mine.losses.push_back(metrics->loss);
      mine.scales.push_back(metrics->loss_scale);
      mine.updated.push_back(metrics->updated);
    };
    for (int64_t step = run.first; step <= run.steps; ++step) {
      const bool overflows = run.overflows && step == 3;
      // A loss of the same value whose gradient is too large for f16 in the first row alone, which one rank has.
      const auto loss = [&model, tokens, overflows] {
        const DTensor logits = model(tokens);
        DTensor mean = CrossEntropy(logits, tokens).Mean();
        if (!overflows) return mean;
        const DTensor first = Sum(Cast(Slice(logits, 0, 0, 1), DType::kF32));
        return mean + Scale(first - first.Detach(), 1e5);
      };
      take(trainer.Step(32, loss));
      mine.updates.push_back(static_cast<int64_t>(optimizer.updates().Item()));
    }
    take(trainer.Flush());
    for (const Parameter* parameter : model.AllParameters()) {
      mine.parameters[parameter->path()] = parameter->at_rest().FullTensor().ToVector<double>();
    }
    if (!run.save.empty()) {
      auto tensors = CheckpointTensors(model, optimizer);
      for (const auto& tensor : scale.State()) tensors.push_back(tensor);
      SaveTensors(run.save, tensors, {});
    }
    if (world.rank() == 0) outcome = mine;
  });
  return outcome;
}

TEST(LossScaleTest, AnOverflowAnywhereSkipsTheUpdateEverywhere) {
  for (const auto& [plan, mesh] : std::vector<std::pair<std::string, std::string>>{
           {"ddp", "dp=2"}, {"zero1", "dp=2"}, {"fsdp", "dp=2"}, {"ddp", "dp=2,tp=2"}}) {
    const Outcome outcome = TrainScaled({.mesh = mesh, .plan = plan});
    EXPECT_EQ(outcome.updated, (std::vector<bool>{true, true, false, true, true, true})) << plan;
    EXPECT_EQ(outcome.updates, (std::vector<int64_t>{1, 2, 2, 3, 4, 5})) << plan;
    EXPECT_EQ(outcome.scales, (std::vector<double>{4096, 8192, 4096, 4096, 8192, 8192})) << plan;
    EXPECT_EQ(outcome.losses[2] > outcome.losses[3] || outcome.losses[2] == outcome.losses[3], true) << plan;
    EXPECT_LT(outcome.losses[5], outcome.losses[0]) << plan;
    for (const auto& [path, values] : outcome.parameters) {
      for (const double value : values) ASSERT_TRUE(std::isfinite(value)) << path;
    }
  }
}

// As at the end of a Join: the scale grows by updates alone.
TEST(LossScaleTest, AStepThatCountsNothingIsNoUpdate) {
  for (const int hysteresis : {1, 2}) {
    RunRanks(2, [&](World& world) {
      Gpt model(kConfig);
      const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
      const auto context = Parallelize(model, world, mesh, DataPlanNamed("ddp", mesh), {});
      Sgd optimizer(model.AllParameters(), {});
      LossScale scale(context, {.initial = 8, .interval = 2, .hysteresis = hysteresis});
      Trainer trainer(model, optimizer, {.schedule = [](int64_t) { return 1e-3; }, .loss_scale = &scale});
      const DTensor tokens =
          DTensor::Distribute(context, Tensor::FromValues<int32_t>({2, 8}, std::vector<int32_t>(16, 1)),
                              Layout::Parse("[dp, -]", mesh));
      std::vector<double> scales, good_steps;
      std::vector<bool> updated;
      for (const bool counts : {true, false, false, true, false, false, false, true}) {
        const DTensor targets = counts ? tokens : FullLike(tokens, -100);
        trainer.Step(
            /*microbatches=*/1, [&](int) { return CountTargets(targets); },
            [&model, tokens, targets](int) { return model.Loss(tokens, targets); });
        updated.push_back(trainer.Flush().value().updated);
        scales.push_back(scale.value().Item());
        good_steps.push_back(scale.State()[1].second.Item());
      }
      EXPECT_EQ(updated, (std::vector<bool>{true, false, false, true, false, false, false, true}));
      EXPECT_EQ(scales, (std::vector<double>{8, 8, 8, 16, 16, 16, 16, 16}));
      EXPECT_EQ(good_steps, (std::vector<double>{1, 1, 1, 0, 0, 0, 0, 1}));
    });
  }
}

// What overflows in the gradients of one stage alone: no stage is updated, and all go on with the same scale.
TEST(LossScaleTest, AnOverflowOnOneStageSkipsAll) {
  for (const char* schedule : {"1f1b", "zb_h1"}) {
    RunRanks(2, [&](World& world) {
      Products model(4);
      Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"layers.*", Pipeline("pp")}},
                  {.dtype = DType::kF64});
      Sgd optimizer(model.AllParameters(), {.momentum = 0.5});
      LossScale scale(model.context(), {.initial = 8});
      Trainer trainer(model, optimizer, {.schedule = [](int64_t) { return 0.05; }, .loss_scale = &scale});
      PipelineExecutor pipeline(model, GenerateSchedule(schedule, {.ranks = 2, .microbatches = 2}));
      bool overflows = false;
      Parameter& first = model.layers[0]->weight;
      if (world.rank() == 0) {
        first.AddGradientReady([&](Parameter& parameter) {
          if (overflows) parameter.SetGrad(FullLike(parameter.grad(), HUGE_VAL));
        });
      }
      Parameter& own = *model.AllParameters()[0];
      std::vector<bool> changes, updated;
      std::vector<double> scales;
      const auto take = [&](const std::optional<StepMetrics>& metrics) {
        if (!metrics) return;
        updated.push_back(metrics->updated);
        scales.push_back(metrics->loss_scale);
      };
      for (int step = 1; step <= 3; ++step) {
        overflows = step == 2;
        const std::vector<double> before = own.at_rest().ToLocal().ToVector<double>();
        take(trainer.Step(pipeline, ProductParts(model.context(), 2)));
        changes.push_back(own.at_rest().ToLocal().ToVector<double>() != before);
      }
      take(trainer.Flush());
      EXPECT_EQ(changes, (std::vector<bool>{true, false, true})) << schedule << ", rank " << world.rank();
      EXPECT_EQ(updated, changes) << schedule << ", rank " << world.rank();
      EXPECT_EQ(scales, (std::vector<double>{8, 4, 4})) << schedule << ", rank " << world.rank();
    });
  }
}

// Under a scale with which f32 does not hold the loss: the step is skipped, and what it tells is the loss all the same.
TEST(LossScaleTest, AStageTellsALossThatOverflowsWhereItIsScaled) {
  RunRanks(2, [](World& world) {
    Products model(4);
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"layers.*", Pipeline("pp")}},
                {.dtype = DType::kF32});
    Sgd optimizer(model.AllParameters(), {});
    LossScale scale(model.context(), {.initial = 0x1p127});
    Trainer trainer(model, optimizer, {.schedule = [](int64_t) { return 0.05; }, .loss_scale = &scale});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
    std::vector<Microbatch> parts = ProductParts(model.context(), 2);
    for (Microbatch& part : parts) {
      part.inputs[0] = Cast(part.inputs[0], DType::kF32);
      part.targets = Cast(Scale(part.targets, 1000), DType::kF32);
    }
    const LossSum plain = pipeline.ForwardLoss(parts);
    const double loss = plain.sum.Item() / plain.count.Item();
    EXPECT_GT(loss, 1000);
    trainer.Step(pipeline, parts);
    const StepMetrics metrics = trainer.Flush().value();
    EXPECT_NEAR(metrics.loss, loss, 1e-9 * loss);
    EXPECT_FALSE(metrics.updated);
    EXPECT_EQ(metrics.loss_scale, 0x1p126);
  });
}

// Powers of two: with no overflow, and nothing that vanishes, the scale is not seen in f32 compute of the update.
TEST(LossScaleTest, IsState) {
  const std::string path = testing::TempDir() + "/scaled.safetensors";
  const Outcome whole = TrainScaled({});
  TrainScaled({.steps = 3, .save = path});
  const Outcome rest = TrainScaled({.resume = path, .first = 4});
  EXPECT_EQ(rest.parameters, whole.parameters);
  EXPECT_EQ(rest.scales, (std::vector<double>{4096, 8192, 8192}));
  for (const auto& [plan, mesh] : std::vector<std::pair<std::string, std::string>>{
           {"fsdp", "dp=4"}, {"none", ""}, {"ddp", "dp=1,tp=2"}}) {
    const Outcome other = TrainScaled({.mesh = mesh, .plan = plan, .resume = path, .first = 4});
    EXPECT_EQ(other.scales, rest.scales) << plan;
    for (size_t i = 0; i < other.losses.size(); ++i)
      EXPECT_NEAR(other.losses[i], rest.losses[i], 5e-3) << plan;
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace weft
