#include "examples/checkpoint_flags.h"

#include <filesystem>
#include <optional>
#include <string>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

// What another job saves between a program's look at the folder and its world would give the texts of one step and the
// tensors of the other.
TEST(CheckpointFlagsTest, AStepThatComesOrGoesAfterTheFlagsWereReadIsToldByBoth) {
  const absl::FlagSaver saver;
  const std::string folder = testing::TempDir() + "/steps";
  std::filesystem::remove_all(folder);
  std::string error;
  ASSERT_TRUE(absl::FindCommandLineFlag("checkpoint_dir")->ParseFrom(folder, &error)) << error;
  RunRanks(2, [&](World& world) {
    const auto save = [&](int64_t step) {
      State state;
      state.Add("run", MakeTextsState([step] { return StateTexts{{"text", absl::StrCat("of ", step)}}; }));
      CheckpointManager manager(world, {.folder = folder});
      manager.Save(step, state);
      manager.Wait();
    };
    const auto message = [&](const std::optional<int64_t>& read) {
      const CheckpointManager manager(world, {.folder = folder});
      return MessageOf([&] { RequireSameStep(manager, read); });
    };
    const std::string newest = absl::StrCat("--checkpoint_dir=", folder, ": the newest step is ");
    EXPECT_EQ(message(std::nullopt), "no error");
    EXPECT_EQ(message(4), newest + "none, but 4 was when the run began; start it again");
    save(4);
    EXPECT_EQ(message(std::nullopt), newest + "4, but none was when the run began; start it again");
    const std::optional<SavedStep> saved = FindSavedStep();
    ASSERT_TRUE(saved);
    EXPECT_EQ(saved->step, 4);
    EXPECT_EQ(saved->texts.at("text"), "of 4");
    EXPECT_EQ(message(saved->step), "no error");
    save(7);
    EXPECT_EQ(message(saved->step), newest + "7, but 4 was when the run began; start it again");
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace weft
