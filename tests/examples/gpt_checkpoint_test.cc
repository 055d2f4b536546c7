#include "examples/gpt/gpt_checkpoint.h"

#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/state/state.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/schedule.h"
#include "examples/gpt/gpt_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/flags.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

using Arguments = std::vector<std::string>;

ParsedFlags Parse(const Arguments& arguments) {
  std::vector<const char*> argv = {"train_gpt"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseFlags(static_cast<int>(argv.size()), argv.data(), TrainGptUsage());
}

// The flags that a run keeps.
SafetensorsMetadata Saved(const Arguments& arguments) {
  const absl::FlagSaver saver;
  Parse(arguments);
  return ResumableFlags(/*scales_loss=*/false);
}

GptCheckpointInfo InfoOf(const SafetensorsMetadata& flags) {
  GptCheckpointInfo info;
  info.tokenizer = "{}";
  info.flags = flags;
  return info;
}

// What restores flags: of a run that goes on in a folder, or from a file.
using Restore = decltype(&RestoreGptRun);

// The rates of a run that goes on from one that kept `flags`.
WarmupCosine Rates(const SafetensorsMetadata& flags, const Arguments& arguments,
                   Restore restore = &RestoreGptRun) {
  const absl::FlagSaver saver;
  restore(InfoOf(flags), Parse(arguments), /*scales_loss=*/false);
  return GptRunFromFlags(/*tokenizer_vocabulary=*/256).schedule;
}

// A floor that is a share of the rate follows it, and nothing scales it twice; one that is a number, or that has followed a
// rate which a batch policy scales, is scaled as that is.
TEST(GptCheckpointTest, TheFloorOfARunThatGoesOn) {
  const Arguments doubled = {"--batch=24", "--batch_policy=linear"};
  const SafetensorsMetadata share = Saved({"--lr=6e-4", "--min_lr_ratio=0.1"});
  EXPECT_DOUBLE_EQ(Rates(share, {}).floor, 6e-5);
  EXPECT_DOUBLE_EQ(Rates(share, {"--lr=3e-4"}).floor, 3e-5);
  EXPECT_DOUBLE_EQ(Rates(share, doubled).peak, 1.2e-3);
  EXPECT_DOUBLE_EQ(Rates(share, doubled).floor, 0.1 * 1.2e-3);

  const SafetensorsMetadata number = Saved({"--lr=6e-4", "--min_lr=1e-4"});
  EXPECT_DOUBLE_EQ(Rates(number, {}).floor, 1e-4);
  EXPECT_DOUBLE_EQ(Rates(number, doubled).floor, 2e-4);
  EXPECT_DOUBLE_EQ(Rates(number, {"--min_lr_ratio=0.5"}).floor, 3e-4);
  EXPECT_DOUBLE_EQ(Rates(Saved({"--lr=6e-4", "--min_lr=2e-4"}), {"--min_lr_ratio=0.5"}).floor, 3e-4);

  const SafetensorsMetadata none = Saved({"--lr=6e-4"});
  EXPECT_DOUBLE_EQ(Rates(none, {}).floor, 6e-5);
  EXPECT_DOUBLE_EQ(Rates(none, doubled).floor, 1.2e-4);
  EXPECT_DOUBLE_EQ(Rates(none, {"--lr=2e-4"}).floor, 2e-5);
  EXPECT_DOUBLE_EQ(Rates(none, {"--batch=24", "--batch_policy=linear", "--lr=2e-4"}).floor, 2e-5);
  EXPECT_DOUBLE_EQ(Rates(none, {"--min_lr_ratio=0.5"}).floor, 3e-4);
  EXPECT_DOUBLE_EQ(Rates(none, {"--min_lr=1e-4"}).floor, 1e-4);
}

// From a file a policy scales as in a folder; without one the batch may be another, and the rates stay.
TEST(GptCheckpointTest, ABatchPolicyHoldsForAFile) {
  const auto rates = [](const Arguments& saved, const Arguments& arguments) {
    return Rates(Saved(saved), arguments, &RestoreGptFlags);
  };
  const Arguments none = {"--lr=6e-4"}, number = {"--lr=6e-4", "--min_lr=1e-4"};
  const Arguments linear = {"--batch=24", "--batch_policy=linear"};
  EXPECT_DOUBLE_EQ(rates(none, linear).peak, 1.2e-3);
  EXPECT_DOUBLE_EQ(rates(none, linear).floor, 1.2e-4);
  EXPECT_DOUBLE_EQ(rates(number, linear).floor, 2e-4);
  EXPECT_DOUBLE_EQ(rates(none, {"--batch=48", "--batch_policy=sqrt"}).peak, 1.2e-3);
  EXPECT_DOUBLE_EQ(rates(none, {"--batch=24", "--batch_policy=linear", "--lr=2e-4"}).peak, 2e-4);
  EXPECT_DOUBLE_EQ(rates(none, {"--batch_policy=linear"}).peak, 6e-4);
  EXPECT_DOUBLE_EQ(rates(none, {"--batch=24"}).peak, 6e-4);
  EXPECT_DOUBLE_EQ(rates(none, {"--batch=24"}).floor, 6e-5);
}

// A file of --print_config gives every flag, a context of 0 among them; the checkpoint has the number that it stood for.
TEST(GptCheckpointTest, AContextOf0IsThatOfTheCheckpoint) {
  SafetensorsMetadata flags = Saved({});
  flags["context"] = "64";
  for (const Restore restore : {&RestoreGptRun, &RestoreGptFlags}) {
    const auto context = [&](const Arguments& arguments) {
      const absl::FlagSaver saver;
      restore(InfoOf(flags), Parse(arguments), /*scales_loss=*/false);
      return GptRunFromFlags(/*tokenizer_vocabulary=*/256).model.context;
    };
    EXPECT_EQ(context({}), 64);
    EXPECT_EQ(context({"--context=64"}), 64);
    EXPECT_EQ(context({"--context=0"}), 64);
    EXPECT_EQ(InvalidArgumentMessage([&] { context({"--context=32"}); }),
              "--context=32: the checkpoint to resume from was made with '64'; leave the flag out");
  }
}

// What says how a scale shrinks is nothing that a run whose scale stays was given.
TEST(GptCheckpointTest, ALossScaleMayStayFromNowOn) {
  const SafetensorsMetadata flags = [] {
    const absl::FlagSaver saver;
    Parse({"--dtype=f16", "--loss_scale_hysteresis=2", "--min_loss_scale=1"});
    return ResumableFlags(/*scales_loss=*/true);
  }();
  for (const Restore restore : {&RestoreGptRun, &RestoreGptFlags}) {
    const auto scale = [&](const Arguments& arguments) {
      const absl::FlagSaver saver;
      restore(InfoOf(flags), Parse(arguments), /*scales_loss=*/true);
      return GptRunFromFlags(/*tokenizer_vocabulary=*/256).loss_scale;
    };
    EXPECT_EQ(scale({}), (LossScaleOptions{.min = 1, .hysteresis = 2}));
    EXPECT_EQ(scale({"--loss_scale_window=0"}), LossScaleOptions{.interval = 0});
    EXPECT_EQ(scale({"--loss_scale_window=100"}),
              (LossScaleOptions{.interval = 100, .min = 1, .hysteresis = 2}));
    EXPECT_EQ(InvalidArgumentMessage([&] {
                scale({"--loss_scale_window=0", "--min_loss_scale=4"});
              }),
              "--min_loss_scale=4: expected a scale that changes, got --loss_scale_window=0");
  }
}

// A warm-up that the run was given is none of a schedule that it takes now and that grows in a way of its own.
TEST(GptCheckpointTest, ASchedulesOwnWarmUpTakesThePlaceOfAnEarlierOne) {
  const SafetensorsMetadata flags = Saved({"--warmup_shape=log"});
  for (const Restore restore : {&RestoreGptRun, &RestoreGptFlags}) {
    EXPECT_EQ(Rates(flags, {}, restore).warmup, WarmupShape::kLog);
    EXPECT_EQ(Rates(flags, {"--schedule_lr=linear"}, restore).warmup, WarmupShape::kLog);
    EXPECT_EQ(Rates(flags, {"--schedule_lr=one_cycle"}, restore).warmup, WarmupShape::kLinear);
    EXPECT_EQ(InvalidArgumentMessage([&] {
                Rates(flags, {"--schedule_lr=one_cycle", "--warmup_shape=log"}, restore);
              }),
              "--warmup_shape=log: expected linear with --schedule_lr=one_cycle, which grows as a cosine");
  }
}

// Earlier versions took flags that mean nothing of the run's schedule or optimizer, and kept them.
TEST(GptCheckpointTest, WhatMeansNothingOfARunThatGoesOnIsNotTaken) {
  const SafetensorsMetadata constant =
      Saved({"--lr=6e-4", "--schedule_lr=constant", "--min_lr=1e-4", "--min_lr_ratio=0.5"});
  const SafetensorsMetadata falls = Saved({"--lr=6e-4", "--min_lr=1e-4"});
  for (const Restore restore : {&RestoreGptRun, &RestoreGptFlags}) {
    EXPECT_DOUBLE_EQ(Rates(constant, {}, restore).peak, 6e-4);
    EXPECT_DOUBLE_EQ(Rates(constant, {"--schedule_lr=linear"}, restore).floor, 1e-4);
    EXPECT_DOUBLE_EQ(Rates(falls, {"--schedule_lr=constant"}, restore).peak, 6e-4);
    // Nor does a policy make a floor of a rate that stays.
    for (const SafetensorsMetadata& flags : {constant, Saved({"--lr=6e-4", "--schedule_lr=constant"})}) {
      EXPECT_DOUBLE_EQ(Rates(flags, {"--batch=24", "--batch_policy=linear"}, restore).peak, 1.2e-3);
    }
    EXPECT_EQ(InvalidArgumentMessage([&] {
                Rates(falls, {"--schedule_lr=constant", "--min_lr=1e-4"}, restore);
              }),
              "--min_lr=0.0001: expected a --schedule_lr that falls, got constant");
    for (const char* optimizer : {"--optimizer=sgd --beta2=0.5", "--optimizer=adafactor --beta1=0.5"}) {
      const Arguments arguments = absl::StrSplit(optimizer, ' ');
      EXPECT_EQ(MessageOf([&] { Rates(Saved(arguments), {}, restore); }), "no error") << optimizer;
    }
  }
}

// Before --min_lr had -1 for a floor that follows the rate, its default of 0.0001 said so.
TEST(GptCheckpointTest, TheFloorOfAnOlderCheckpointIsReadAsItWas) {
  GptCheckpointInfo info = InfoOf(Saved({"--lr=6e-4"}));
  const auto floor_of = [&](bool is_old) {
    info.flags["min_lr"] = "0.0001";
    StateTexts texts = GptTexts(info);
    if (is_old) texts.erase("weft.flags_format");
    return Rates(ReadGptInfo("runs", texts).flags, {}).floor;
  };
  EXPECT_DOUBLE_EQ(floor_of(/*is_old=*/true), 6e-5);
  EXPECT_DOUBLE_EQ(floor_of(/*is_old=*/false), 1e-4);
  info.flags["min_lr_ratio"] = "0.25";
  EXPECT_DOUBLE_EQ(floor_of(/*is_old=*/true), 1.5e-4);
  EXPECT_DOUBLE_EQ(floor_of(/*is_old=*/false), 1e-4);
}

// Paths need not be UTF-8, and texts in files do.
TEST(GptCheckpointTest, AFlagThatNoFileCanKeepIsRefusedBeforeTheFirstStep) {
  const auto info = [](const std::string& data) { return InfoOf(Saved({absl::StrCat("--data=", data)})); };
  EXPECT_EQ(
      InvalidArgumentMessage([&] { CheckCanSave(info("/tmp/caf\xe9.txt")); }),
      "--data=/tmp/caf\\xe9.txt: expected UTF-8, which checkpoints keep it in; rename it, or save nothing");
  const GptCheckpointInfo saved = info("/tmp/caf\xc3\xa9.txt");
  EXPECT_NO_THROW(CheckCanSave(saved));
  EXPECT_EQ(ReadGptInfo("runs", GptTexts(saved)).flags, saved.flags);
}

// What a step that was loaded was made with is told apart by the floor that holds, however it was said.
TEST(GptCheckpointTest, ARunIsTheSameByItsFloor) {
  const auto same = [](const Arguments& loaded, const Arguments& now) {
    RequireSameRun(InfoOf(Saved(loaded)), nullptr, InfoOf(Saved(now)));
  };
  EXPECT_NO_THROW(same({"--lr=1e-3"}, {"--lr=1e-3", "--min_lr=1e-4"}));
  EXPECT_ANY_THROW(same({"--lr=6e-4"}, {"--lr=6e-4", "--min_lr=1e-4"}));
  EXPECT_ANY_THROW(same({"--lr=6e-4", "--min_lr=1e-4"}, {"--lr=6e-4"}));
}

// A step that another machine sees, and this one did not when it took its flags: earlier versions kept flags that mean nothing.
TEST(GptCheckpointTest, WhatMeansNothingOfAStepThatIsSeenLateDoesNotCount) {
  const auto message = [](const Arguments& loaded, const Arguments& given) {
    const GptCheckpointInfo late = InfoOf(Saved(loaded));
    const absl::FlagSaver saver;
    GptCheckpointInfo now;
    now.parsed = Parse(given);
    now.flags = ResumableFlags(/*scales_loss=*/false);
    return MessageOf([&] { RequireSameRun(late, /*read=*/nullptr, now); });
  };
  EXPECT_EQ(
      message({"--schedule_lr=constant", "--min_lr=1e-4", "--min_lr_ratio=0.5"}, {"--schedule_lr=constant"}),
      "no error");
  EXPECT_EQ(message({"--optimizer=sgd", "--beta2=0.5"}, {"--optimizer=sgd"}), "no error");
  EXPECT_EQ(message({"--optimizer=adafactor", "--beta1=0.5"}, {"--optimizer=adafactor"}), "no error");
  EXPECT_EQ(
      message({"--optimizer=lion", "--beta1=0.5"}, {"--optimizer=lion"}),
      "--checkpoint_dir=: step 0, which was loaded, was made with --beta1=0.5, but when the run began it was "
      "--beta1=0.9; start it again, or give the flag");
  // A floor that is told as a number means something, whatever share is given now.
  EXPECT_THAT(message({"--lr=6e-4", "--min_lr=2e-5"}, {"--lr=6e-4", "--min_lr_ratio=0.1"}),
              HasSubstr("was made with --min_lr=2"));
}

// A newer step was read, which turned out to be broken. What was given counts, whatever that and the one below it say.
TEST(GptCheckpointTest, WhatWasGivenIsTakenFromNoStep) {
  const auto message = [](const Arguments& loaded, const Arguments& read, const Arguments& given) {
    const GptCheckpointInfo newest = InfoOf(Saved(read)), before = InfoOf(Saved(loaded));
    const absl::FlagSaver saver;
    GptCheckpointInfo now = newest;
    now.parsed = Parse(given);
    RestoreGptRun(newest, now.parsed, /*scales_loss=*/false);
    now.flags = ResumableFlags(/*scales_loss=*/false);
    return MessageOf([&] { RequireSameRun(before, &newest, now); });
  };
  const Arguments six = {"--steps=6"}, twelve = {"--steps=12"};
  EXPECT_EQ(message(six, twelve, twelve), "no error");
  EXPECT_EQ(message(six, twelve, {"--steps=24"}), "no error");
  EXPECT_EQ(message(six, twelve, {"--lr=1e-3"}),
            "--checkpoint_dir=: step 0, which was loaded, was made with --steps=6, but when the run began it "
            "was --steps=12; start it again, or give the flag");
  EXPECT_EQ(message({"--lr=1e-3"}, {"--lr=2e-3"}, {"--lr=2e-3"}), "no error");  // their floors follow
  EXPECT_EQ(message({"--min_lr=1e-5"}, {"--min_lr=2e-5"}, {"--min_lr_ratio=0.1"}), "no error");
}

}  // namespace
}  // namespace weft
