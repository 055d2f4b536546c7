#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "examples/gpt/gpt_optimizer.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/examples/gpt_run_of.h"
namespace weft {
namespace {

TEST(GptOptimizerFlagsTest, EpsIsOfOptimizersThatHaveOne) {
  EXPECT_EQ(RunOf({}).adamw.eps, 1e-8);
  for (const char* name : {"adamw", "muon", "adamw8bit", "lamb"}) {
    const GptRun run = RunOf({"--eps=1e-5", std::string("--optimizer=") + name});
    EXPECT_EQ(run.adamw.eps, 1e-5) << name;
    EXPECT_EQ(run.eps, 1e-5) << name;
  }
  EXPECT_EQ(MessageOf({"--eps=1e-05", "--optimizer=lion"}),
            "--eps=1e-05: expected --optimizer=adamw, muon, adamw8bit or lamb, got lion");
  EXPECT_EQ(MessageOf({"--eps=1"}), "--eps=1: expected at least 0 and below 1");
}

TEST(GptOptimizerFlagsTest, BetasAreOfOptimizersThatHaveThem) {
  EXPECT_EQ(MessageOf({"--beta1=0.5", "--optimizer=adafactor"}),
            "--beta1=0.5: expected --optimizer=adamw, sgd, lion, muon, lamb or adamw8bit, got adafactor");
  for (const std::string name : {"adafactor", "sgd"}) {
    EXPECT_EQ(MessageOf({"--beta2=0.9", "--optimizer=" + name}),
              "--beta2=0.9: expected --optimizer=adamw, lion, muon, lamb or adamw8bit, got " + name);
  }
  EXPECT_EQ(RunOf({"--beta1=0.5", "--optimizer=sgd"}).adamw.beta1, 0.5);
  // The defaults, as a file of --print_config names them.
  EXPECT_EQ(RunOf({"--beta1=0.9", "--beta2=0.99", "--optimizer=adafactor"}).optimizer, "adafactor");
}

// Every shape of a schedule has the warm-up that is asked for, but one_cycle, which has its own.
TEST(GptOptimizerFlagsTest, TheWarmUpHasAShape) {
  for (const char* shape : {"cosine", "linear", "wsd", "warm_restarts", "constant"}) {
    const std::string schedule_lr = absl::StrCat("--schedule_lr=", shape);
    const Schedule log =
        MakeGptSchedule(RunOf({"--lr=0.5", "--warmup=16", "--warmup_shape=log", schedule_lr}));
    const Schedule linear = MakeGptSchedule(RunOf({"--lr=0.5", "--warmup=16", schedule_lr}));
    EXPECT_DOUBLE_EQ(log(3), 0.25) << shape;  // log(4) of log(16)
    EXPECT_DOUBLE_EQ(linear(3), 0.5 * 3 / 16) << shape;
    EXPECT_DOUBLE_EQ(log(200), linear(200)) << shape;
  }
  EXPECT_EQ(MessageOf({"--schedule_lr=one_cycle", "--warmup_shape=log"}),
            "--warmup_shape=log: expected linear with --schedule_lr=one_cycle, which grows as a cosine");
}

TEST(GptOptimizerFlagsTest, MomentumIsNesterovsUnlessItIsPlain) {
  EXPECT_TRUE(RunOf({"--optimizer=sgd"}).nesterov);
  EXPECT_FALSE(RunOf({"--optimizer=sgd", "--nesterov=false"}).nesterov);
  EXPECT_EQ(MessageOf({"--nesterov=false"}), "--nesterov=false: expected --optimizer=sgd, got adamw");
}

// Every optimizer takes a step of a GPT, and every schedule ends where --min_lr says; one line names what there is.
TEST(GptOptimizerFlagsTest, OptimizersAndSchedulesByName) {
  for (const char* name : {"adamw", "sgd", "lion", "adafactor", "muon", "lamb", "adamw8bit"}) {
    const GptRun run = RunOf({absl::StrCat("--optimizer=", name), "--layers=1", "--dim=8", "--heads=2"});
    RunRanks(1, [&](World& world) {
      Gpt model(run.model);
      Materialize(model, Bind(world, DeviceMesh()));
      const std::unique_ptr<Optimizer> optimizer = MakeGptOptimizer(run, model.AllParameters());
      for (Parameter* parameter : model.AllParameters()) parameter->SetGrad(OnesLike(parameter->at_rest()));
      const auto values = [&] { return model.AllParameters()[2]->at_rest().ToLocal().ToVector<float>(); };
      const std::vector<float> before = values();
      optimizer->Step(0.01);
      EXPECT_NE(values(), before) << name;
      EXPECT_EQ(optimizer->updates().Item(), 1) << name;
    });
  }
  for (const char* name : {"cosine", "linear", "wsd", "one_cycle", "warm_restarts"}) {
    const GptRun run = RunOf(
        {absl::StrCat("--schedule_lr=", name), "--steps=104", "--warmup=4", "--lr=0.5", "--min_lr=0.125"});
    const Schedule schedule = MakeGptSchedule(run);
    EXPECT_NEAR(schedule(4), 0.5, 1e-15) << name;
    EXPECT_LE(schedule(1), 0.125) << name;
    const bool restarts = name == std::string("warm_restarts");
    EXPECT_EQ(schedule(30) == 0.5, restarts || name == std::string("wsd")) << name;
    EXPECT_NEAR(schedule(104), 0.125, restarts ? 0.03 : 1e-15) << name;
    const Schedule none =
        MakeGptSchedule(RunOf({absl::StrCat("--schedule_lr=", name), "--steps=104", "--warmup=4", "--lr=0"}));
    for (const int64_t step : {1, 4, 5, 30, 104}) EXPECT_EQ(none(step), 0) << name;
  }
  const Schedule constant =
      MakeGptSchedule(RunOf({"--schedule_lr=constant", "--steps=104", "--warmup=4", "--lr=0.5"}));
  EXPECT_NEAR(constant(2), 0.25, 1e-15);
  for (const int64_t step : {4, 30, 104}) EXPECT_EQ(constant(step), 0.5);
  EXPECT_EQ(MessageOf({"--optimizer=adam"}),
            "--optimizer=adam: expected one of adamw, sgd, lion, adafactor, muon, lamb, adamw8bit");
  EXPECT_EQ(MessageOf({"--schedule_lr=1f1b"}),
            "--schedule_lr=1f1b: expected one of cosine, linear, wsd, one_cycle, warm_restarts, constant");
}

// A floor that is not given follows a small rate; one that is given stays, or is refused.
TEST(GptOptimizerFlagsTest, TheFloorOfTheRate) {
  const auto floor = [](const std::vector<std::string>& arguments) {
    return RunOf(arguments).schedule.floor;
  };
  EXPECT_EQ(floor({}), 1e-4);
  EXPECT_EQ(floor({"--lr=0.5"}), 1e-4);
  EXPECT_EQ(floor({"--lr=5e-5"}), 5e-6);
  EXPECT_EQ(floor({"--lr=0"}), 0);
  EXPECT_EQ(floor({"--lr=5e-5", "--min_lr=4e-5"}), 4e-5);
  EXPECT_EQ(floor({"--lr=6e-4"}), 6e-4 / 10);
  EXPECT_EQ(floor({"--lr=6e-4", "--min_lr=1e-4"}), 1e-4);
  EXPECT_EQ(floor({"--lr=6e-4", "--min_lr=0"}), 0);
  EXPECT_EQ(floor({"--lr=0.5", "--min_lr_ratio=0.25"}), 0.125);
  EXPECT_EQ(floor({"--lr=0.5", "--min_lr_ratio=0"}), 0);
  EXPECT_EQ(floor({"--lr=0.5", "--min_lr_ratio=1"}), 0.5);
  EXPECT_EQ(MessageOf({"--min_lr_ratio=1.5"}), "--min_lr_ratio=1.5: expected a number from -1 to 1");
  EXPECT_EQ(floor({"--lr=0.5", "--min_lr_ratio=0.25", "--min_lr=0.25"}), 0.25);
  EXPECT_EQ(MessageOf({"--lr=5e-5", "--min_lr=6e-5"}), "--min_lr=6e-05: expected at most --lr=5e-05");
  EXPECT_EQ(MessageOf({"--lr=5e-5", "--min_lr=1e-4"}), "--min_lr=0.0001: expected at most --lr=5e-05");
  for (const std::string given : {"--min_lr=0.0001", "--min_lr_ratio=0.25"}) {
    EXPECT_EQ(MessageOf({"--schedule_lr=constant", given}),
              given + ": expected a --schedule_lr that falls, got constant");
  }
}

}  // namespace
}  // namespace weft
