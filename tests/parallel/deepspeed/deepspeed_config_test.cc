#include "parallel/deepspeed/deepspeed_config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

std::string ErrorOf(const std::string& text) {
  return InvalidArgumentMessage([&] { DeepSpeedConfig::FromJson(text); });
}

TEST(DeepSpeedConfigTest, ReadsAWholeFile) {
  const DeepSpeedConfig config = DeepSpeedConfig::FromJson(R"({
    "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0, "steps_per_print": 100,
    "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
             "min_loss_scale": 1},
    "bf16": {"enabled": true},
    "zero_optimization": {
      "stage": 3, "overlap_comm": true, "contiguous_gradients": true, "reduce_bucket_size": 5e8,
      "offload_optimizer": {"device": "cpu", "pin_memory": true},
      "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": false}},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000, "warmup_min_lr": 0,
                  "warmup_max_lr": 3e-4, "warmup_num_steps": 100, "warmup_type": "linear"}}
  })");
  DeepSpeedConfig expected = {.train_batch_size = 32,
                              .train_micro_batch_size_per_gpu = 4,
                              .gradient_accumulation_steps = 2,
                              .gradient_clipping = 1,
                              .steps_per_print = 100,
                              .bf16 = true};
  expected.fp16 = {.enabled = false,
                   .loss_scale = 0,
                   .initial_scale_power = 16,
                   .loss_scale_window = 1000,
                   .hysteresis = 2,
                   .min_loss_scale = 1};
  expected.zero_optimization = {.stage = 3,
                                .overlap_comm = true,
                                .reduce_bucket_size = 500000000,
                                .offload_optimizer = {.device = "cpu"},
                                .offload_param = {.device = "nvme", .nvme_path = "/local_nvme"}};
  DeepSpeedOptimizer optimizer = {.type = "AdamW", .lr = 3e-4, .eps = 1e-8, .weight_decay = 0.1};
  optimizer.betas = {0.9, 0.95};
  expected.optimizer = optimizer;
  expected.scheduler = {.type = "WarmupDecayLR",
                        .warmup_type = "linear",
                        .total_num_steps = 5000,
                        .warmup_num_steps = 100,
                        .warmup_max_lr = 3e-4};
  EXPECT_EQ(config, expected);
}

TEST(DeepSpeedConfigTest, AutoIsAsIfTheKeyWereNotThere) {
  const DeepSpeedConfig config = DeepSpeedConfig::FromJson(R"({
    "train_batch_size": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": "auto",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": 0}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_type": "linear",
                  "warmup_max_lr": "auto"}}
  })");
  EXPECT_FALSE(config.train_batch_size || config.gradient_clipping || config.fp16);
  EXPECT_TRUE(config.auto_clipping);
  EXPECT_EQ(config.bf16, false);
  EXPECT_EQ(config.zero_optimization, (DeepSpeedZero{.stage = 2}));
  EXPECT_THAT(config.optimizer->auto_params, ElementsAre("lr", "betas"));
  EXPECT_FALSE(config.optimizer->lr || config.optimizer->betas);
  EXPECT_EQ(config.optimizer->weight_decay, 0);
  EXPECT_FALSE(config.scheduler->total_num_steps);
}

// What a scheduler and SGD leave out is what DeepSpeed takes then.
TEST(DeepSpeedConfigTest, WarmUpsAreLogarithmsAndMomentumIsPlainUnlessTheFileSaysOtherwise) {
  const auto warmup_type = [](const std::string& param) {
    return DeepSpeedConfig::FromJson(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1)" +
                                     param + "}}}")
        .scheduler->warmup_type;
  };
  EXPECT_EQ(warmup_type(""), "log");
  EXPECT_EQ(warmup_type(R"(, "warmup_type": "log")"), "log");
  EXPECT_EQ(warmup_type(R"(, "warmup_type": "linear")"), "linear");
  EXPECT_EQ(warmup_type(R"(, "warmup_type": "auto")"), std::nullopt);
  const auto sgd = [](const std::string& params) {
    return *DeepSpeedConfig::FromJson(R"({"optimizer": {"type": "SGD", "params": {)" + params + "}}}")
                .optimizer;
  };
  EXPECT_EQ(sgd(R"("momentum": 0.9)").nesterov, std::nullopt);
  EXPECT_EQ(sgd(R"("momentum": 0.9, "nesterov": false)").nesterov, false);
  EXPECT_EQ(sgd(R"("momentum": 0.9, "nesterov": true)").nesterov, true);
  EXPECT_THAT(sgd(R"("momentum": "auto", "nesterov": "auto")").auto_params,
              ElementsAre("momentum", "nesterov"));
}

TEST(DeepSpeedConfigTest, AnyOtherKeyIsAnErrorByItsName) {
  EXPECT_EQ(ErrorOf(R"({"train_batch_size": 8, "amp": {"enabled": true}})"),
            "key \"amp\": Weft has nothing for it");
  EXPECT_EQ(ErrorOf(R"({"train_batchsize": 8})"),
            "key \"train_batchsize\": Weft has nothing for it; did you mean \"train_batch_size\"?");
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"stage3_max_live_parameters": 1e9}})"),
            "key \"zero_optimization.stage3_max_live_parameters\": Weft has nothing for it");
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"offload_param": {"device": "cpu", "max_in_cpu": 1e9}}})"),
            "key \"zero_optimization.offload_param.max_in_cpu\": Weft has nothing for it");
  EXPECT_EQ(ErrorOf(R"({"fp16": {"enable": true}})"),
            "key \"fp16.enable\": Weft has nothing for it; did you mean \"fp16.enabled\"?");
  EXPECT_EQ(ErrorOf(R"({"bf16": {"enable": true}})"),
            "key \"bf16.enable\": Weft has nothing for it; did you mean \"bf16.enabled\"?");
  EXPECT_EQ(DeepSpeedConfig::FromJson(R"({"bf16": {"enabled": false, "bf16_optimizer_states": true}})").bf16,
            false);
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "AdamW", "params": {"freeze_step": 4}}})"),
            "key \"optimizer.params.freeze_step\": Weft has nothing for it");
  EXPECT_EQ(ErrorOf(R"({"train_batch_size": 8, "mesh": "dp=2"})"), "key \"mesh\": Weft has nothing for it");
}

TEST(DeepSpeedConfigTest, AWrongValueNamesKeyGivenAndExpected) {
  EXPECT_EQ(ErrorOf(R"({"train_batch_size": 0})"),
            "key \"train_batch_size\": expected a whole number of 1 or more, got 0");
  EXPECT_EQ(ErrorOf(R"({"train_batch_size": "8"})"),
            "key \"train_batch_size\": expected a whole number of 1 or more, got \"8\"");
  EXPECT_EQ(ErrorOf(R"({"train_batch_size": 8.5})"),
            "key \"train_batch_size\": expected a whole number of 1 or more, got 8.5");
  EXPECT_EQ(ErrorOf(R"({"gradient_clipping": -1})"),
            "key \"gradient_clipping\": expected a number of 0 or more, got -1");
  EXPECT_EQ(ErrorOf(R"({"bf16": true})"), "key \"bf16\": expected an object, got true");
  EXPECT_EQ(ErrorOf(R"({"bf16": {"enabled": 1}})"), "key \"bf16.enabled\": expected true or false, got 1");
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"stage": 4}})"),
            "key \"zero_optimization.stage\": expected 0, 1, 2 or 3, got 4");
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"offload_optimizer": {"device": "disk"}}})"),
            "key \"zero_optimization.offload_optimizer.device\": expected none or cpu or nvme, got \"disk\"");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "OneBitAdam"}})"),
            "key \"optimizer.type\": expected Adam or AdamW or Lion or SGD, got \"OneBitAdam\"");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {}})"),
            "key \"optimizer.type\": expected Adam or AdamW or Lion or SGD, it is missing");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "auto"}})"),
            "key \"optimizer.type\": expected Adam or AdamW or Lion or SGD, got \"auto\"");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})"),
            "key \"optimizer.params.betas\": expected two numbers of at least 0 and below 1, got [0.9]");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}})"),
            "key \"optimizer.params.betas\": expected two numbers of at least 0 and below 1, got [0.9,1]");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "Adam", "params": {"eps": 0}}})"),
            "key \"optimizer.params.eps\": expected a number above 0 and below 1, got 0");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "SGD", "params": {"eps": 1e-8}}})"),
            "key \"optimizer.params.eps\": Weft has nothing for it");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "Adam", "params": {"weight_decay": "none"}}})"),
            "key \"optimizer.params.weight_decay\": expected a number of 0 or more, got \"none\"");
  EXPECT_EQ(ErrorOf(R"({"fp16": {"loss_scale": -1}})"),
            "key \"fp16.loss_scale\": expected a number of 0 or more, got -1");
  EXPECT_EQ(
      ErrorOf(R"({"fp16": {"loss_scale": 1e39}})"),
      "key \"fp16.loss_scale\": expected 0 (the scale is dynamic), or a number that f32 holds, got 1e+39");
  EXPECT_EQ(ErrorOf(R"({"fp16": {"loss_scale_window": 0}})"),
            "key \"fp16.loss_scale_window\": expected a whole number of 1 or more, got 0");
  EXPECT_EQ(ErrorOf(R"({"fp16": {"hysteresis": 1001}})"),
            "key \"fp16.hysteresis\": expected at most 1000, got 1001");
  EXPECT_EQ(ErrorOf(R"({"fp16": {"initial_scale_power": 4, "min_loss_scale": 32}})"),
            "key \"fp16.min_loss_scale\": expected at most 16, 2 to the initial_scale_power, got 32");
  EXPECT_EQ(ErrorOf("[]"), "expected an object, got []");
  EXPECT_THAT(ErrorOf("{"), testing::StartsWith("no JSON: "));
}

// Readers of JSON take the last of several; DeepSpeed refuses them.
TEST(DeepSpeedConfigTest, AKeyThatIsGivenTwiceIsRefused) {
  EXPECT_EQ(ErrorOf(R"({"train_batch_size": 16, "steps_per_print": 1, "train_batch_size": 32})"),
            "key \"train_batch_size\" is given twice");
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"stage": 1, "stage": 1}})"), "key \"stage\" is given twice");
  EXPECT_EQ(DeepSpeedConfig::FromJson(R"({"bf16": {"enabled": false}, "fp16": {"enabled": true}})").bf16,
            false);
}

TEST(DeepSpeedConfigTest, WhatWeftDoesOtherwiseIsRefused) {
  EXPECT_EQ(ErrorOf(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
            "keys \"bf16\" and \"fp16\": expected one of them enabled, got both");
  EXPECT_EQ(
      ErrorOf(R"({"zero_optimization": {"contiguous_gradients": false}})"),
      "key \"zero_optimization.contiguous_gradients\": expected true (gradients move in buckets), got false");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})"),
            "key \"optimizer.params.adam_w_mode\": expected true (weights decay apart from the gradient), "
            "got false");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0, "nesterov": true}}})"),
            "key \"optimizer.params.nesterov\": expected a momentum with it");
  EXPECT_EQ(
      ErrorOf(R"({"optimizer": {"type": "AdamW", "params": {"torch_adam": true}}})"),
      "key \"optimizer.params.weight_decay\": expected a number with torch_adam, it is missing, which is "
      "0.01 in torch's AdamW");
  EXPECT_EQ(ErrorOf(R"({"fp16": {"initial_scale_power": 128}})"),
            "key \"fp16.initial_scale_power\": expected at most 127 (the scale is an f32), got 128");
  EXPECT_EQ(
      ErrorOf(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear"}}})"),
      "key \"scheduler.params.warmup_max_lr\": expected a number or \"auto\", it is missing, which is 0.001 "
      "in DeepSpeed, whatever the optimizer says");
  EXPECT_EQ(
      ErrorOf(R"({"zero_optimization": {"stage": 3,
                        "offload_optimizer": {"device": "nvme", "nvme_path": "/a"},
                        "offload_param": {"device": "nvme", "nvme_path": "/b"}}})"),
      "key \"zero_optimization.offload_param.nvme_path\": expected that of offload_optimizer, /a, got /b");
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})"),
            "key \"zero_optimization.offload_param\": expected stage 3 with it, got stage 2");
  EXPECT_EQ(ErrorOf(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cubic"}}})"),
            "key \"scheduler.params.warmup_type\": expected linear or log, got \"cubic\"");
  EXPECT_EQ(ErrorOf(R"({"scheduler": {"type": "WarmupLR"}})"),
            "key \"scheduler.params\": expected an object, it is missing");
  EXPECT_EQ(ErrorOf(R"({"scheduler": {"type": "WarmupLR", "params": "auto"}})"),
            "key \"scheduler.params\": expected an object, got \"auto\"");
  EXPECT_EQ(ErrorOf(R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": "linear"}}})"),
            "key \"scheduler.params.total_num_steps\": expected a whole number, it is missing");
  EXPECT_EQ(
      ErrorOf(
          R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_min_lr": 1}}})"),
      "key \"scheduler.params.warmup_min_lr\": expected 0 (warm-ups begin at 0), got 1");
}

// batch == micro * accumulation * ranks: every combination of what is given, against the product.
TEST(DeepSpeedConfigTest, TheThreeNumbersAgree) {
  for (const int64_t micro : {1, 3}) {
    for (const int64_t steps : {1, 2, 5}) {
      for (const int64_t ranks : {1, 4}) {
        const int64_t batch = micro * steps * ranks;
        const DeepSpeedBatch expected = {.batch = batch, .microbatches = steps};
        DeepSpeedConfig all;
        all.train_batch_size = batch;
        all.train_micro_batch_size_per_gpu = micro;
        all.gradient_accumulation_steps = steps;
        EXPECT_EQ(ResolveDeepSpeedBatch(all, ranks), expected);
        DeepSpeedConfig some = all;
        some.train_batch_size.reset();
        EXPECT_EQ(ResolveDeepSpeedBatch(some, ranks), expected);
        some = all;
        some.train_micro_batch_size_per_gpu.reset();
        EXPECT_EQ(ResolveDeepSpeedBatch(some, ranks), expected);
        some = all;
        some.gradient_accumulation_steps.reset();
        EXPECT_EQ(ResolveDeepSpeedBatch(some, ranks), expected);
        some.train_micro_batch_size_per_gpu.reset();
        EXPECT_EQ(ResolveDeepSpeedBatch(some, ranks), (DeepSpeedBatch{.batch = batch, .microbatches = 1}));
        all.train_batch_size = batch + ranks;
        EXPECT_THAT(InvalidArgumentMessage([&] { ResolveDeepSpeedBatch(all, ranks); }),
                    testing::HasSubstr("their product is"));
      }
    }
  }
  EXPECT_EQ(ResolveDeepSpeedBatch({.train_micro_batch_size_per_gpu = 3}, 2),
            (DeepSpeedBatch{.batch = 6, .microbatches = 1}));
  EXPECT_EQ(ResolveDeepSpeedBatch({}, 2), DeepSpeedBatch());
  EXPECT_EQ(ResolveDeepSpeedBatch({.gradient_accumulation_steps = 3}, 2),
            (DeepSpeedBatch{.microbatches = 3}));
  EXPECT_EQ(
      InvalidArgumentMessage([] {
        ResolveDeepSpeedBatch(
            {.train_batch_size = 33, .train_micro_batch_size_per_gpu = 4, .gradient_accumulation_steps = 2},
            4);
      }),
      "train_batch_size (33) has to be train_micro_batch_size_per_gpu (4) x gradient_accumulation_steps (2) "
      "x 4 data-parallel ranks: their product is 32");
  EXPECT_EQ(InvalidArgumentMessage([] { ResolveDeepSpeedBatch({.train_batch_size = 6}, 4); }),
            "train_batch_size (6) has to be train_micro_batch_size_per_gpu (not given) x "
            "gradient_accumulation_steps (not given) x 4 data-parallel ranks: 4 does not divide it");
}

// A file may have each of the three up to 2^53.
TEST(DeepSpeedConfigTest, AProductThatNoWholeNumberHoldsIsAnError) {
  constexpr int64_t kMany = int64_t{1} << 52;
  const DeepSpeedConfig configs[] = {
      {.train_batch_size = 8, .train_micro_batch_size_per_gpu = kMany},
      {.train_batch_size = 8, .gradient_accumulation_steps = kMany},
      {.train_micro_batch_size_per_gpu = kMany},
      {.train_micro_batch_size_per_gpu = kMany, .gradient_accumulation_steps = 4096},
      {.train_batch_size = 8, .train_micro_batch_size_per_gpu = kMany, .gradient_accumulation_steps = 4096},
  };
  for (const DeepSpeedConfig& config : configs) {
    EXPECT_THAT(InvalidArgumentMessage([&] { ResolveDeepSpeedBatch(config, 4096); }),
                testing::EndsWith("x 4096 data-parallel ranks: their product is more than 2^63 - 1"));
  }
  EXPECT_EQ(ResolveDeepSpeedBatch({.train_micro_batch_size_per_gpu = kMany}, 1024),
            (DeepSpeedBatch{.batch = kMany * 1024, .microbatches = 1}));
}

}  // namespace
}  // namespace weft
