#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/reflection.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/schedule.h"
#include "examples/gpt/gpt_checkpoint.h"
#include "examples/gpt/gpt_flags.h"
#include "examples/gpt/gpt_optimizer.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

// "auto" is the program's own value; what is left out is DeepSpeed's default.
TEST(GptDeepSpeedFileTest, AFileThatSaysNothingOfClippingDoesNotClip) {
  const auto clip_of = [](const std::string& keys, const std::string& argument) {
    const absl::FlagSaver saver;
    const std::string path = testing::TempDir() + "/clip_config.json";
    std::ofstream(path) << R"({"train_batch_size": 16)" << keys << "}";
    const std::string config = "--config=" + path;
    const char* const argv[] = {"train_gpt", "--mesh=", config.c_str(), argument.c_str()};
    ParseFlags(4, argv, TrainGptUsage());
    std::remove(path.c_str());
    return GptRunFromFlags(256).grad_clip;
  };
  EXPECT_EQ(clip_of("", "--seed=1"), 0);
  EXPECT_EQ(clip_of(R"(, "gradient_clipping": 0.5)", "--seed=1"), 0.5);
  EXPECT_EQ(clip_of(R"(, "gradient_clipping": "auto")", "--seed=1"), 1);
  EXPECT_EQ(clip_of("", "--grad_clip=2"), 2);
}

// What a file leaves out is of a new run: one that goes on has its own, as has another file.
TEST(GptDeepSpeedFileTest, AFileThatSaysNothingOfClippingTakesNoneAway) {
  const std::string path = testing::TempDir() + "/silent_config.json";
  const std::string own = testing::TempDir() + "/own_config.json";
  std::ofstream(own) << R"({"grad_clip": 2})";
  const auto parse = [](const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"train_gpt", "--mesh="};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return ParseFlags(static_cast<int>(argv.size()), argv.data(), TrainGptUsage());
  };
  const GptCheckpointInfo saved = [&] {
    const absl::FlagSaver saver;
    parse({"--batch=16", "--grad_clip=2"});
    GptCheckpointInfo info;
    info.flags = ResumableFlags(/*scales_loss=*/false);
    return info;
  }();
  for (const auto& [keys, expected] :
       std::vector<std::pair<std::string, double>>{{"", 2}, {R"(, "gradient_clipping": 0.5)", 0.5}}) {
    std::ofstream(path) << R"({"train_batch_size": 16)" << keys << "}";
    for (const auto restore : {&RestoreGptRun, &RestoreGptFlags}) {
      const absl::FlagSaver saver;
      restore(saved, parse({"--config=" + path}), /*scales_loss=*/false);
      EXPECT_EQ(GptRunFromFlags(256).grad_clip, expected) << keys;
    }
    const absl::FlagSaver saver;
    parse({"--config=" + own, "--config=" + path});
    EXPECT_EQ(GptRunFromFlags(256).grad_clip, expected) << keys;
  }
  std::remove(path.c_str());
  std::remove(own.c_str());
}

// Through the program's own door: the file is known by its keys, and the command line counts.
TEST(GptDeepSpeedFileTest, AFileIsARun) {
  const absl::FlagSaver saver;
  const std::string path = testing::TempDir() + "/ds_config.json";
  std::ofstream(path)
      << R"({"train_batch_size": 16, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
                             "fp16": {"enabled": true, "loss_scale": 128}, "zero_optimization": {"stage": 2}, "steps_per_print": 7,
                             "optimizer": {"type": "AdamW", "params": {"lr": 0.5, "weight_decay": 0.25, "eps": 1e-6}}})";
  const std::string config = "--config=" + path;
  const char* const argv[] = {"train_gpt", "--mesh=dp=4", config.c_str(), "--grad_clip=2"};
  const ParsedFlags parsed = ParseFlags(4, argv, TrainGptUsage());
  std::remove(path.c_str());
  const GptRun run = GptRunFromFlags(256);
  EXPECT_EQ(run.batch, 16);
  EXPECT_EQ(run.microbatches, 2);
  EXPECT_EQ(run.grad_clip, 2);
  EXPECT_EQ(run.compute_dtype, DType::kF16);
  EXPECT_EQ(run.loss_scale, (LossScaleOptions{.initial = 128, .interval = 0}));
  EXPECT_EQ(run.plan, GptPlan(run.mesh, DataPlan::kZero2, /*sequence_parallel=*/false));
  EXPECT_EQ(run.log_every, 7);
  EXPECT_EQ(run.schedule.peak, 0.5);
  EXPECT_EQ(MakeGptSchedule(run)(run.steps), 0.5);
  EXPECT_EQ(run.adamw, (AdamWOptions{.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.25}));
  EXPECT_TRUE(parsed.Given("plan") && parsed.Given("batch") && !parsed.Given("heads"));
}

}  // namespace
}  // namespace weft
