#include "examples/gpt/gpt_deepspeed.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "dtensor/optim/schedule.h"
#include "examples/gpt/gpt_flags.h"
#include "examples/gpt/gpt_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using Flags = std::map<std::string, std::string>;

// What a file says on a mesh, and beside another file that says a plan; of clipping it says "auto".
Flags FlagsOf(const std::string& text, const std::string& mesh = "dp=2", const std::string& plan = "") {
  Flags flags;
  Flags others = {
      {"mesh", mesh}, {"mesh_choices", ""}, {"backend", "local"}, {"device", "cpu"}, {"plan", plan}};
  FlagsAround around = {.value_of = [&](absl::string_view flag) { return others[std::string(flag)]; }};
  if (!plan.empty()) around.is_given = [](absl::string_view) { return false; };
  const std::string file = absl::StrCat("{\"gradient_clipping\": \"auto\", ", text.substr(1));
  for (const FlagValue& given : GptFlagsFromDeepSpeed(file, around)) flags[given.flag] = given.value;
  return flags;
}

std::string ErrorOf(const std::string& text, const std::string& mesh = "dp=2") {
  return InvalidArgumentMessage([&] { FlagsOf(text, mesh); });
}

TEST(GptDeepSpeedTest, BatchesGoByTheRanksThatHaveRows) {
  const std::string text = R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4})";
  for (const auto& [mesh, batch] :
       std::vector<std::pair<std::string, const char*>>{{"", "12"},
                                                        {"tp=4", "12"},
                                                        {"dp=2,tp=2", "24"},
                                                        {"replica=2,shard=3", "72"},
                                                        {"pp=2,dp=2", "24"}}) {
    EXPECT_EQ(FlagsOf(text, mesh), (Flags{{"batch", batch}, {"microbatches", "4"}})) << mesh;
  }
  EXPECT_THAT(
      ErrorOf(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                          "gradient_accumulation_steps": 2})"),
      testing::HasSubstr("train_batch_size (32) has to be train_micro_batch_size_per_gpu (4) x "
                         "gradient_accumulation_steps (2) x 2 data-parallel ranks: their product is 16"));
}

TEST(GptDeepSpeedTest, StagesArePlans) {
  for (const auto& [stage, plan] :
       std::vector<std::pair<int, const char*>>{{0, "ddp"}, {1, "zero1"}, {2, "zero2"}, {3, "fsdp"}}) {
    EXPECT_EQ(FlagsOf(absl::StrCat("{\"zero_optimization\": {\"stage\": ", stage, "}}")),
              (Flags{{"plan", plan}}));
  }
  EXPECT_EQ(FlagsOf(R"({"zero_optimization": {"stage": 3}})", "replica=2,shard=2"),
            (Flags{{"plan", "hsdp"}}));
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"stage": 1}})", "replica=2,shard=2"),
            "key \"zero_optimization.stage\": expected 3 on a mesh with axes replica and shard, got 1");
  EXPECT_EQ(
      FlagsOf(R"({"zero_optimization": {"stage": 3, "overlap_comm": false, "reduce_bucket_size": 1048576,
                        "offload_optimizer": {"device": "cpu"},
                        "offload_param": {"device": "nvme", "nvme_path": "/nvme"}}})"),
      (Flags{{"plan", "fsdp"},
             {"overlap", "false"},
             {"bucket_mb", "4"},
             {"offload", "state,parameters"},
             {"offload_folder", "/nvme"}}));
}

TEST(GptDeepSpeedTest, PrecisionIsTheDType) {
  EXPECT_EQ(FlagsOf(R"({"bf16": {"enabled": true}, "fp16": {"enabled": false, "hysteresis": 2}})"),
            (Flags{{"dtype", "bf16"}}));
  EXPECT_EQ(FlagsOf(R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12}})"),
            (Flags{{"dtype", "f16"},
                   {"loss_scale", "4096"},
                   {"loss_scale_window", "1000"},
                   {"loss_scale_hysteresis", "2"},
                   {"min_loss_scale", "1"}}));
  EXPECT_EQ(
      FlagsOf(
          R"({"fp16": {"enabled": true, "loss_scale_window": 500, "hysteresis": 4, "min_loss_scale": 0.5}})"),
      (Flags{{"dtype", "f16"},
             {"loss_scale_window", "500"},
             {"loss_scale_hysteresis", "4"},
             {"min_loss_scale", "0.5"}}));
  // A fixed one, beside which the file may say what a dynamic one would be.
  EXPECT_EQ(FlagsOf(R"({"fp16": {"enabled": true, "loss_scale": 128, "initial_scale_power": 12,
                                 "hysteresis": 4, "min_loss_scale": 1024}})"),
            (Flags{{"dtype", "f16"}, {"loss_scale", "128"}, {"loss_scale_window", "0"}}));
}

TEST(GptDeepSpeedTest, AnOptimizerHasDeepSpeedsDefaultsAndAConstantRate) {
  EXPECT_EQ(FlagsOf(R"({"bf16": {"enabled": false}, "optimizer": {"type": "AdamW"}})"),
            (Flags{{"optimizer", "adamw"},
                   {"beta1", "0.90000000000000002"},
                   {"beta2", "0.999"},
                   {"weight_decay", "0"},
                   {"lr", "0.001"},
                   {"warmup", "0"},
                   {"schedule_lr", "constant"}}));
  // DeepSpeed's FusedLion and DeepSpeedCPULion.
  EXPECT_EQ(FlagsOf(R"({"optimizer": {"type": "Lion"}})").at("beta2"), "0.999");
  EXPECT_EQ(FlagsOf(R"({"optimizer": {"type": "Lion"}})").at("lr"), "0.001");
  EXPECT_EQ(FlagsOf(R"({"optimizer": {"type": "Lion", "params": {"lr": "auto", "betas": "auto",
                                      "weight_decay": "auto"}}})"),
            (Flags{{"optimizer", "lion"}}));
  EXPECT_EQ(FlagsOf(R"({"optimizer": {"type": "Adam", "params": {"eps": 0.0625, "betas": [0.5, 0.75],
                                      "weight_decay": 0.25, "lr": 0.5}}})"),
            (Flags{{"optimizer", "adamw"},
                   {"eps", "0.0625"},
                   {"beta1", "0.5"},
                   {"beta2", "0.75"},
                   {"weight_decay", "0.25"},
                   {"lr", "0.5"},
                   {"warmup", "0"},
                   {"schedule_lr", "constant"}}));
  EXPECT_EQ(
      FlagsOf(R"({"optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.5, "nesterov": true}}})"),
      (Flags{{"optimizer", "sgd"},
             {"beta1", "0.5"},
             {"nesterov", "true"},
             {"weight_decay", "0"},
             {"lr", "0.5"},
             {"warmup", "0"},
             {"schedule_lr", "constant"}}));
  const auto nesterov = [](const std::string& params) {
    const Flags flags =
        FlagsOf(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.5)" + params + "}}}");
    const auto found = flags.find("nesterov");
    return found == flags.end() ? "none" : found->second;
  };
  EXPECT_EQ(nesterov(""), "false");
  EXPECT_EQ(nesterov(R"(, "nesterov": false)"), "false");
  EXPECT_EQ(nesterov(R"(, "nesterov": "auto")"), "none");
}

// DeepSpeed's curve at its iteration t is Weft's at step t, its first step being iteration 0: one step apart.
TEST(GptDeepSpeedTest, SchedulesAreDeepSpeedsCurvesOneStepApart) {
  const auto schedule_of = [](const std::string& scheduler, const std::string& argument = "--seed=1") {
    const absl::FlagSaver saver;
    const std::string path = testing::TempDir() + "/schedule_config.json";
    std::ofstream(path) << R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}, "scheduler": )"
                        << scheduler << "}";
    const std::string config = "--config=" + path;
    const char* const argv[] = {"train_gpt", config.c_str(), "--mesh=", argument.c_str()};
    ParseFlags(4, argv, TrainGptUsage());
    std::remove(path.c_str());
    return MakeGptSchedule(GptRunFromFlags(256));
  };
  const Schedule constant = schedule_of(
      R"({"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear", "warmup_max_lr": 0.25}})");
  const Schedule decay = schedule_of(
      R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear", "total_num_steps": 50,
          "warmup_max_lr": 0.5}})");
  const Schedule log = schedule_of(
      R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 50, "warmup_max_lr": 0.5}})");
  const std::string cosine_text =
      R"({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear", "total_num_steps": 50,
          "cos_min_ratio": 0.125}})";
  const Schedule cosine = schedule_of(cosine_text);
  // cos_min_ratio is a share of the peak that holds, also of a smaller one than its floor beside the file's would be.
  const Schedule lower = schedule_of(cosine_text, "--lr=0.03125");
  for (int64_t t = 1; t <= 50; ++t) {
    const double warmup = std::min(1.0, static_cast<double>(t) / 10);
    EXPECT_NEAR(constant(t), 0.25 * warmup, 1e-12) << t;
    const double left = static_cast<double>(50 - std::max<int64_t>(t, 10)) / 40;
    EXPECT_NEAR(decay(t), 0.5 * warmup * left, 1e-12) << t;
    const double grown = t < 10 ? std::log(static_cast<double>(t + 1)) / std::log(10.0) : 1;
    EXPECT_NEAR(log(t), 0.5 * grown * left, 1e-12) << t;
    const double share = (1 + std::cos(M_PI * (1 - left))) / 2;
    EXPECT_NEAR(cosine(t), 0.5 * warmup * (0.125 + 0.875 * share), 1e-12) << t;
    EXPECT_NEAR(lower(t), cosine(t) / 16, 1e-12) << t;
  }
}

// What a scheduler leaves out is DeepSpeed's default, 1000 steps of warm-up; "auto" is the program's own.
TEST(GptDeepSpeedTest, AWarmUpThatIsLeftOutIsDeepSpeeds) {
  const auto warmup_of = [](const std::string& param) {
    const Flags flags = FlagsOf(
        R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_max_lr": 0.5)" +
        param + "}}}");
    const auto found = flags.find("warmup");
    return found == flags.end() ? "none" : found->second;
  };
  EXPECT_EQ(warmup_of(""), "1000");
  EXPECT_EQ(warmup_of(R"(, "warmup_num_steps": 7)"), "7");
  EXPECT_EQ(warmup_of(R"(, "warmup_num_steps": "auto")"), "none");
}

// A flag that a file sets counts as given, before the rate that a run which goes on was saved with: a file that leaves the rate
// to the program says none.
TEST(GptDeepSpeedTest, AScheduleOfARateThatIsAutoSaysNone) {
  const auto flags_of = [](const std::string& lr, const std::string& peak) {
    return FlagsOf(
        absl::StrCat(R"({"optimizer": {"type": "AdamW", "params": {"betas": "auto", "weight_decay": "auto",
                                    "lr": )",
                     lr, R"(}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear",
                                    "warmup_num_steps": "auto", "warmup_max_lr": )",
                     peak, "}}}"));
  };
  EXPECT_EQ(flags_of(R"("auto")", R"("auto")"),
            (Flags{{"optimizer", "adamw"}, {"warmup_shape", "linear"}, {"schedule_lr", "constant"}}));
  EXPECT_EQ(flags_of("0.5", R"("auto")").at("lr"), "0.5");
  EXPECT_EQ(flags_of(R"("auto")", "0.25").at("lr"), "0.25");
  EXPECT_EQ(flags_of("0.5", "0.25").at("lr"), "0.25");
}

// Another rate, of the command line or of a file after it, stays as well; a floor above the rate is refused.
TEST(GptDeepSpeedTest, ARateFromElsewhereStaysToo) {
  const auto run_of = [](const std::vector<std::string>& more) {
    const absl::FlagSaver saver;
    const std::string path = testing::TempDir() + "/rate_config.json",
                      second = testing::TempDir() + "/lr.json";
    std::ofstream(path)
        << R"({"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 0.5}}})";
    std::ofstream(second) << R"({"lr": 0.25})";
    std::vector<std::string> arguments = {"train_gpt", "--mesh=", "--config=" + path};
    for (const std::string& argument : more) {
      arguments.push_back(argument == "second" ? "--config=" + second : argument);
    }
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    ParseFlags(static_cast<int>(argv.size()), argv.data(), TrainGptUsage());
    std::remove(path.c_str());
    std::remove(second.c_str());
    return GptRunFromFlags(256);
  };
  for (const std::string argument : {"--lr=0.25", "second"}) {
    const Schedule schedule = MakeGptSchedule(run_of({argument}));
    for (const int64_t step : {1, 1000, 2000}) EXPECT_EQ(schedule(step), 0.25) << argument;
  }
  EXPECT_EQ(InvalidArgumentMessage([&] {
              run_of({"--lr=0.25", "--schedule_lr=cosine", "--min_lr=0.5"});
            }),
            "--min_lr=0.5: expected at most --lr=0.25");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              run_of({"--dtype=f16", "--loss_scale=inf"});
            }),
            "--loss_scale=inf: expected a number above 0 that f32 holds");
}

// The mesh, and what replaces the file's own, may stand in a file of flags, too.
TEST(GptDeepSpeedTest, AFileOfFlagsBesideItIsKnown) {
  const auto run_of = [](const std::string& keys, const std::string& flags, bool is_behind = true) {
    const absl::FlagSaver saver;
    const std::string path = testing::TempDir() + "/beside_config.json",
                      second = testing::TempDir() + "/beside_flags.json";
    std::ofstream(path) << R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2)" << keys
                        << "}";
    std::ofstream(second) << flags;
    const std::string config = "--config=" + path, more = "--config=" + second;
    const char* const argv[] = {"train_gpt", is_behind ? config.c_str() : more.c_str(),
                                is_behind ? more.c_str() : config.c_str()};
    ParseFlags(3, argv, TrainGptUsage());
    std::remove(path.c_str());
    std::remove(second.c_str());
    return GptRunFromFlags(256);
  };
  for (const bool is_behind : {false, true}) {
    EXPECT_EQ(run_of("", R"({"mesh": "dp=4"})", is_behind).batch, 32);
    EXPECT_EQ(run_of(R"(, "train_batch_size": 32)", R"({"mesh": "dp=4"})", is_behind).batch, 32);
    const GptRun hybrid =
        run_of(R"(, "zero_optimization": {"stage": 3})", R"({"mesh": "replica=2,shard=2"})", is_behind);
    EXPECT_EQ(hybrid.plan, GptPlan(hybrid.mesh, DataPlan::kHsdp, /*sequence_parallel=*/false));
  }
  const std::string fp16 = R"(, "fp16": {"enabled": true})", bf16 = R"({"dtype": "bf16"})";
  EXPECT_EQ(run_of(fp16, bf16).compute_dtype, DType::kBF16);
  EXPECT_EQ(run_of(fp16, bf16, /*is_behind=*/false).loss_scale,
            (LossScaleOptions{.initial = 65536, .interval = 1000, .min = 1, .hysteresis = 2}));
}

// What is of the file's own dtype, optimizer or schedule alone goes with it; beside one that takes it too, it stays.
TEST(GptDeepSpeedTest, WhatTheCommandLineReplacesTakesWithItWhatIsItsAlone) {
  const auto run_of = [](const std::string& keys, const std::string& argument) {
    const absl::FlagSaver saver;
    const std::string path = testing::TempDir() + "/replaced_config.json";
    std::ofstream(path) << R"({"train_batch_size": 12, )" << keys << "}";
    const std::string config = "--config=" + path;
    const char* const argv[] = {"train_gpt", "--mesh=", config.c_str(), argument.c_str()};
    ParseFlags(4, argv, TrainGptUsage());
    std::remove(path.c_str());
    return GptRunFromFlags(256);
  };
  const std::string fp16 = R"("fp16": {"enabled": true, "initial_scale_power": 12})";
  for (const char* dtype : {"--dtype=bf16", "--dtype=f32"}) {
    EXPECT_EQ(run_of(fp16, dtype).loss_scale, std::nullopt) << dtype;
  }
  EXPECT_EQ(run_of(fp16, "--dtype=f16").loss_scale,
            (LossScaleOptions{.initial = 4096, .interval = 1000, .min = 1, .hysteresis = 2}));
  EXPECT_EQ(run_of(fp16, "--loss_scale_window=500").loss_scale,
            (LossScaleOptions{.initial = 4096, .interval = 500, .min = 1, .hysteresis = 2}));
  EXPECT_EQ(run_of(fp16, "--loss_scale_window=0").loss_scale,
            (LossScaleOptions{.initial = 4096, .interval = 0}));

  const std::string sgd = R"("optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.5}})";
  EXPECT_FALSE(run_of(sgd, "--optimizer=sgd").nesterov);
  EXPECT_EQ(run_of(sgd, "--optimizer=sgd").adamw.beta1, 0.5);
  EXPECT_TRUE(run_of(sgd, "--optimizer=adamw").nesterov);
  // A momentum, be it the default of 0, is no first moment.
  const std::string plain = R"("optimizer": {"type": "SGD", "params": {"lr": 0.5}})";
  for (const std::string& file : {sgd, plain}) {
    EXPECT_EQ(run_of(file, "--optimizer=adamw").adamw.beta1, 0.9) << file;
  }
  EXPECT_EQ(run_of(plain, "--lr=0.25").adamw.beta1, 0);
  const std::string adam = R"("optimizer": {"type": "Adam", "params": {"lr": 0.5, "eps": 0.0625}})";
  EXPECT_EQ(run_of(adam, "--optimizer=lamb").eps, 0.0625);
  EXPECT_EQ(run_of(adam, "--optimizer=lion").eps, 0);
  const std::string betas = R"("optimizer": {"type": "Adam", "params": {"lr": 0.5, "betas": [0.5, 0.75]}})";
  EXPECT_EQ(run_of(betas, "--optimizer=lion").adamw.beta1, 0.5);
  EXPECT_EQ(run_of(betas, "--optimizer=sgd").adamw.beta1, 0.5);
  EXPECT_EQ(run_of(betas, "--optimizer=sgd").adamw.beta2, 0.99);
  EXPECT_EQ(run_of(betas, "--optimizer=adafactor").adamw.beta1, 0.9);

  const std::string log = R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}})";
  EXPECT_EQ(run_of(log, "--schedule_lr=wsd").schedule.warmup, WarmupShape::kLog);
  EXPECT_EQ(run_of(log, "--schedule_lr=one_cycle").schedule.warmup, WarmupShape::kLinear);

  const std::string decay =
      R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 0.5, "warmup_num_steps": 9, "total_num_steps": 50}})";
  EXPECT_EQ(run_of(decay, "--min_lr_ratio=0.25").schedule.floor, 0.125);
  EXPECT_EQ(run_of(decay, "--min_lr_ratio=-1").schedule.floor, 0);
  EXPECT_EQ(run_of(decay, "--min_lr=0.0625").schedule.floor, 0.0625);
  EXPECT_EQ(run_of(decay, "--schedule_lr=constant").schedule.peak, 0.5);
  const std::string cosine =
      R"("scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 9, "total_num_steps": 50}},
         "optimizer": {"type": "AdamW", "params": {"lr": 0.5}})";
  EXPECT_EQ(run_of(cosine, "--schedule_lr=constant").schedule.peak, 0.5);

  const std::string zero =
      R"("zero_optimization": {"stage": 2, "reduce_bucket_size": 1048576, "overlap_comm": false,
                               "offload_optimizer": {"device": "cpu"}})";
  const Plan own = {{"blocks.*.mlp.up", ColumnParallel("a")}, {"", DataParallel("b")}};
  const std::string path = testing::TempDir() + "/own_plan.json";
  std::ofstream(path) << own.ToJson();
  EXPECT_EQ(run_of(zero, "--plan=" + path).plan, own);
  std::remove(path.c_str());
  EXPECT_EQ(run_of(zero, "--plan=ddp").plan.scheduler().bucket_mb, 4);
  // Nor where another file says so, and this one says no plan.
  const std::string buckets =
      R"({"train_batch_size": 16, "zero_optimization": {"reduce_bucket_size": 1048576}})";
  EXPECT_EQ(FlagsOf(buckets, "dp=2", "ddp").count("bucket_mb"), 1u);
  EXPECT_EQ(FlagsOf(buckets, "dp=2", "own.json").count("bucket_mb"), 0u);
}

// The folder of what is offloaded goes with that; a plan of one's own may offload, and keeps it.
TEST(GptDeepSpeedTest, TheFolderIsOfWhatIsOffloaded) {
  const std::string nvme = R"({"train_batch_size": 16,
      "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}})";
  Flags others = {
      {"mesh", "dp=2"}, {"mesh_choices", ""}, {"backend", "local"}, {"device", "cpu"}, {"offload", ""}};
  const auto value_of = [&](absl::string_view flag) { return others[std::string(flag)]; };
  const auto is_given = [](absl::string_view flag) { return flag == "offload"; };
  EXPECT_THAT(GptFlagsFromDeepSpeed(nvme, {.value_of = value_of, .is_given = is_given}),
              testing::Not(testing::Contains(testing::Field(&FlagValue::flag, "offload_folder"))));
  EXPECT_EQ(FlagsOf(nvme, "dp=2", "ddp").at("offload_folder"), "/nvme");
  EXPECT_EQ(FlagsOf(nvme, "dp=2", "own.json").count("offload"), 0u);
  EXPECT_EQ(FlagsOf(nvme, "dp=2", "own.json").at("offload_folder"), "/nvme");
}

}  // namespace
}  // namespace weft
