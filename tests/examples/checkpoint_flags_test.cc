#include "examples/checkpoint_flags.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

// A start of many ranks does not ask for the files of all ranks on each of them: a manifest is enough, and its files need not
// be there. A manifest that is broken is passed over, also if there is no other: whether the run may begin is told later.
TEST(CheckpointFlagsTest, OneSmallFileIsReadBeforeThereIsAWorld) {
  const absl::FlagSaver saver;
  const std::string folder = testing::TempDir() + "/steps";
  std::filesystem::remove_all(folder);
  std::string error;
  ASSERT_TRUE(absl::FindCommandLineFlag("checkpoint_dir")->ParseFrom(folder, &error)) << error;
  EXPECT_FALSE(FindSavedStep());
  RunRanks(2, [&](World& world) {
    CheckpointManager manager(world, {.folder = folder});
    for (const int64_t step : {4, 7}) {
      State state = SmallState(world, 2);
      state.Add("run", MakeTextsState([step] { return StateTexts{{"text", absl::StrCat("of ", step)}}; }));
      manager.Save(step, state);
    }
  });
  std::optional<SavedStep> saved = FindSavedStep();
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->step, 7);
  EXPECT_EQ(saved->texts.at("text"), "of 7");
  for (const char* rank : {"0", "1"}) {
    ASSERT_TRUE(
        std::filesystem::remove(absl::StrCat(folder, "/step-000000007/rank-0000", rank, ".safetensors")));
  }
  ASSERT_TRUE(FindSavedStep());
  EXPECT_EQ(FindSavedStep()->step, 7);
  std::ofstream(folder + "/step-000000007/manifest.json") << "{}";
  ASSERT_TRUE(FindSavedStep());
  EXPECT_EQ(FindSavedStep()->step, 4);
  std::filesystem::remove(folder + "/step-000000004/manifest.json");
  EXPECT_FALSE(FindSavedStep());
  std::filesystem::remove_all(folder);
}

// What saving would be like is not asked for where nothing is saved. A file of --print_config has the defaults.
TEST(CheckpointFlagsTest, FlagsOfSavingWantAFolder) {
  const auto options = [](const std::string& flag, const std::string& value, const std::string& folder) {
    const absl::FlagSaver saver;
    std::string error;
    EXPECT_TRUE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error)) << error;
    EXPECT_TRUE(absl::FindCommandLineFlag("checkpoint_dir")->ParseFrom(folder, &error)) << error;
    return CheckpointOptionsFromFlags();
  };
  for (const auto& [flag, value] : std::map<std::string, std::string>{{"save_every", "5"},
                                                                      {"keep", "1"},
                                                                      {"save_in_background", "false"},
                                                                      {"save_incremental", "true"},
                                                                      {"save_bandwidth", "200"}}) {
    EXPECT_EQ(MessageOf([&, &flag = flag, &value = value] { options(flag, value, ""); }),
              absl::StrCat("--", flag, "=", value, ": expected --checkpoint_dir, too"));
    EXPECT_TRUE(options(flag, value, testing::TempDir() + "/saved")) << flag;
  }
  EXPECT_FALSE(options("save_every", "250", ""));
  EXPECT_EQ(options("save_bandwidth", "200", testing::TempDir() + "/saved")->bytes_per_second, 2e8);
  EXPECT_EQ(options("keep", "1", testing::TempDir() + "/saved")->bytes_per_second, 0);
  // Nor is the rate of what training waits for.
  const absl::FlagSaver saver;
  std::string error;
  EXPECT_TRUE(absl::FindCommandLineFlag("save_in_background")->ParseFrom("false", &error)) << error;
  EXPECT_EQ(
      MessageOf([&] { options("save_bandwidth", "200", testing::TempDir() + "/saved"); }),
      "--save_bandwidth=200: expected --save_in_background, too: a save that training waits for goes as "
      "fast as it can");
  EXPECT_TRUE(options("save_bandwidth", "0", testing::TempDir() + "/saved"));
  const std::string file = testing::TempDir() + "/a_file";
  std::ofstream(file) << "text";
  EXPECT_EQ(MessageOf([&] { options("keep", "3", file); }),
            absl::StrCat("--checkpoint_dir=", file, ": expected a folder, got a file"));
}

// What was taken over before there was a world must hold for the step that is loaded in it.
TEST(CheckpointFlagsTest, AnotherStepMayBeLoadedIfItsFlagsAreTheSame) {
  using Flags = std::map<std::string, std::string>;
  const auto message = [](const Flags& loaded, const Flags& read, const Flags& now) {
    return MessageOf([&] { RequireSameFlags(7, loaded, read, now); });
  };
  const Flags saved = {{"lr", "0.1"}, {"seed", "3"}};
  EXPECT_EQ(message(saved, saved, saved), "no error");
  EXPECT_EQ(message(saved, saved, {{"lr", "0.5"}, {"seed", "3"}}), "no error");  // it was scaled
  EXPECT_EQ(message({{"lr", "0.5"}, {"seed", "3"}}, saved, {{"lr", "0.5"}, {"seed", "3"}}), "no error");
  EXPECT_EQ(message({{"lr", "1e-1"}, {"older", "x"}}, saved, saved), "no error");
  EXPECT_EQ(
      message({{"lr", "0.2"}, {"seed", "3"}}, saved, {{"lr", "0.5"}, {"seed", "3"}}),
      "--checkpoint_dir=: step 7, which was loaded, was made with --lr=0.2, but when the run began it was "
      "--lr=0.5; start it again, or give the flag");
  // A flag that was given is taken over from neither.
  const Flags other = {{"lr", "0.2"}, {"older", "x"}}, now = {{"lr", "0.5"}, {"seed", "3"}};
  EXPECT_EQ(WithGiven(other, now, {.given = {"lr", "mesh", "older"}}),
            (Flags{{"lr", "0.5"}, {"older", "x"}}));
  EXPECT_EQ(WithGiven(other, now, {.given = {"seed"}}), other);
  EXPECT_EQ(message(WithGiven(other, now, {.given = {"lr"}}), saved, now), "no error");
}

// What BatchForRanks makes of a batch of 32 under these flags.
ScaledBatch Scaled(const std::string& policy, int64_t batch_ranks, int64_t num_ranks, int64_t multiple = 1,
                   int64_t least = 1) {
  const absl::FlagSaver saver;
  std::string error;
  EXPECT_TRUE(absl::FindCommandLineFlag("batch_policy")->ParseFrom(policy, &error)) << error;
  EXPECT_TRUE(absl::FindCommandLineFlag("batch_ranks")->ParseFrom(absl::StrCat(batch_ranks), &error))
      << error;
  return BatchForRanks(32, multiple, num_ranks, least);
}

TEST(CheckpointFlagsTest, TheBatchFollowsTheRanksByARule) {
  for (const char* policy : {"keep", "linear", "sqrt"}) {
    EXPECT_EQ(Scaled(policy, 0, 2), (ScaledBatch{.batch = 32})) << policy;
  }
  EXPECT_EQ(Scaled("linear", 4, 2), (ScaledBatch{.batch = 16, .rate = 0.5}));
  EXPECT_EQ(Scaled("linear", 4, 4), (ScaledBatch{.batch = 32}));
  EXPECT_EQ(Scaled("sqrt", 1, 4), (ScaledBatch{.batch = 128, .rate = 2}));
  // To a multiple of which there is one at least; the rate follows what the batch has become.
  EXPECT_EQ(Scaled("linear", 3, 2, /*multiple=*/8), (ScaledBatch{.batch = 24, .rate = 0.75}));
  EXPECT_EQ(Scaled("linear", 512, 2, /*multiple=*/8), (ScaledBatch{.batch = 8, .rate = 0.25}));
  // Not below a smallest one, which the rate follows, too.
  EXPECT_EQ(Scaled("linear", 8, 1, /*multiple=*/1, /*least=*/16), (ScaledBatch{.batch = 16, .rate = 0.5}));
  EXPECT_EQ(Scaled("linear", 8, 1, /*multiple=*/4, /*least=*/5), (ScaledBatch{.batch = 8, .rate = 0.25}));
  EXPECT_EQ(MessageOf([] { Scaled("keep", 4, 4); }),
            "--batch_ranks=4: expected 0, or --batch_policy=linear or sqrt, which says how the learning rate "
            "follows");
  EXPECT_EQ(MessageOf([] { Scaled("sqrt", -1, 4); }), "--batch_ranks=-1: expected 0 or more");
  EXPECT_EQ(MessageOf([] { Scaled("half", 4, 4); }),
            "--batch_policy=half: expected one of keep, linear, sqrt");
}

}  // namespace
}  // namespace weft
