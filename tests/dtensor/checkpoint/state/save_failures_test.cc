// Saves that fail on one rank, or after the program has gone on: all ranks go through the same rounds.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/files/forwarding_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFolder[] = "runs";

// A save in the background has failed and is over when the next one is due, or the last: that is done all the same, and the
// failure told behind it.
TEST(SaveFailuresTest, TheNextSaveIsNotLost) {
  for (const bool is_last : {false, true}) {
    const auto files = std::make_shared<CrashFiles>();
    RunRanks(2, [&](World& world) {
      const State state = SmallState(world, 2);
      CheckpointManager manager(world,
                                {.folder = kFolder, .save_every = 2, .background = true, .files = files});
      OnFirst(world, [&] { files->FailAt(3, absl::StatusCode::kResourceExhausted, /*from_then_on=*/true); });
      manager.Save(1, state);
      while (!manager.is_over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      OnFirst(world, [&] { files->FailNever(); });
      FillState(state, 2);
      EXPECT_THAT(MessageOf([&] { is_last ? manager.Save(2, state) : void(manager.AfterStep(2, state)); }),
                  HasSubstr("No space left on device"));
      EXPECT_FALSE(manager.is_saving());
      EXPECT_EQ(manager.latest_step(), 2);
      manager.AfterStep(3, state);  // told once
      FillState(state, 4);
      manager.AfterStep(4, state);
      manager.Wait();
    });
    EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(2, 4));
    EXPECT_THAT(VerifyStep(*files, kFolder, 2).problems, IsEmpty());
  }
}

// The disk was full, and now it is broken: what went wrong first explains the rest, which is a warning.
TEST(SaveFailuresTest, TheFirstOfTwoFailuresIsTold) {
  const auto files = std::make_shared<CrashFiles>();
  std::vector<std::string> warnings;
  RunRanks(2, [&](World& world) {
    const State state = SmallState(world, 2);
    CheckpointManager manager(
        world, {.folder = kFolder, .background = true, .files = files, .warn = [&](const std::string& line) {
                  warnings.push_back(line);
                }});
    OnFirst(world, [&] { files->FailAt(3, absl::StatusCode::kResourceExhausted, /*from_then_on=*/true); });
    manager.Save(1, state);
    while (!manager.is_over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    OnFirst(world, [&] { files->FailAt(0, absl::StatusCode::kDataLoss, /*from_then_on=*/true); });
    EXPECT_THAT(MessageOf([&] { manager.Save(2, state); }), HasSubstr("No space left on device"));
    EXPECT_FALSE(manager.is_saving());
    OnFirst(world, [&] { files->FailNever(); });
    manager.Save(3, state);
    manager.Wait();
  });
  EXPECT_THAT(warnings,
              ElementsAre(AllOf(HasSubstr("the next save failed, too: "), HasSubstr("Input/output error"))));
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(3));
}

// A rank that goes under while its save is written, at a rate that takes hours, does not keep its failure to itself until then.
TEST(SaveFailuresTest, AFailingRankDoesNotFinishItsSave) {
  const auto files = std::make_shared<CrashFiles>();
  const std::string message = MessageOf([&] {
    RunRanks(2, [&](World& world) {
      const State state = SmallState(world, 2);
      CheckpointManager manager(
          world, {.folder = kFolder, .background = true, .bytes_per_second = 1e-2, .files = files});
      manager.Save(1, state);
      if (world.rank() == 1) Throw(absl::StatusCode::kInternal, "gone");
      world.store().Wait({"never"}, std::chrono::minutes(10));
    });
  });
  EXPECT_EQ(message, "rank 1: gone");
  EXPECT_THAT(ListSteps(*files, kFolder), IsEmpty());
}

// The store may not be in reach when a save is to be counted: the step is there all the same, on every rank.
TEST(SaveFailuresTest, AnErrorOfTheWordAboutASaveIsAWarning) {
  for (const bool background : {false, true}) {
    const auto files = std::make_shared<CrashFiles>();
    std::vector<std::string> warnings;
    RunRanks(2, [&](World& world) {
      const State state = SmallState(world, 2);
      const auto on_saved = [](int64_t step) {
        if (step < 3) Throw(absl::StatusCode::kUnavailable, "the store is away");
      };
      CheckpointManager manager(world, {.folder = kFolder,
                                        .background = background,
                                        .on_saved = on_saved,
                                        .files = files,
                                        .warn = [&](const std::string& line) { warnings.push_back(line); }});
      for (int64_t step = 1; step <= 3; ++step) {
        EXPECT_EQ(MessageOf([&] {
                    manager.Save(step, state);
                    manager.Wait();
                  }),
                  "no error");
        EXPECT_EQ(manager.latest_step(), step);
      }
    });
    EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 2, 3));
    EXPECT_THAT(warnings,
                ElementsAre("step 1: it is saved, but was not counted as a save: the store is away",
                            "step 2: it is saved, but was not counted as a save: the store is away"));
  }
}

// Of what is asked of the program on one rank.
TEST(SaveFailuresTest, AnErrorOfOneRanksStateIsTold) {
  for (const bool background : {false, true}) {
    const auto files = std::make_shared<CrashFiles>();
    RunRanks(3, [&](World& world) {
      bool fails = false;
      const auto text = [&] {
        if (fails) Throw(absl::StatusCode::kResourceExhausted, "no memory for a text");
        return std::string("text");
      };
      State state = SmallState(world, 3);
      state.Add("text", MakeTextState("text", text, [](const std::string&) {}));
      CheckpointManager manager(world, {.folder = kFolder, .background = background, .files = files});
      manager.Save(1, state);
      fails = world.rank() == 1;
      EXPECT_EQ(MessageOf([&] {
                  manager.Save(2, state);
                  manager.Wait();
                }),
                "rank 1: no memory for a text");
      fails = false;
      manager.Save(3, state);
      manager.Wait();
    });
    EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 3));
    EXPECT_THAT(VerifyStep(*files, kFolder, 3).problems, IsEmpty());
  }
}

// A job that is started into the folder of another one, which is in the middle of a save, leaves that alone, and says so; what
// the first has left by its end is removed.
TEST(SaveFailuresTest, ASecondJobLeavesTheFirstOnesSave) {
  const std::string folder = testing::TempDir() + "/two_jobs";
  std::filesystem::remove_all(folder);
  const std::shared_ptr<Files> files = MakeDiskFiles();
  const std::string open = JoinPath(folder, TemporaryStepName(7, 0, "1a2b3c4d"));
  std::vector<std::string> warnings;
  const auto options = [&](const std::string& run_id, int64_t generation) {
    return CheckpointOptions{
        .folder = folder, .run_id = run_id, .generation = generation, .warn = [&](const std::string& line) {
          warnings.push_back(line);
        }};
  };
  const auto start = [&](const std::string& run_id, int64_t generation = 0) {
    RunRanks(2, [&](World& world) { CheckpointManager(world, options(run_id, generation)); });
  };
  RunRanks(1, [&](World& world) {
    const CheckpointManager first(world, options("first", 0));
    MakeFolders(*files, open);
    for (const char* run_id : {"second", "", "first"}) {  // another job may have the same name
      start(run_id);
      EXPECT_TRUE(std::filesystem::exists(open));
      EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("two_jobs': another job saves there, process "),
                                              HasSubstr("; what it is writing is left alone"))));
      warnings.clear();
    }
    // An earlier life of the same job, which is ending, holds up nothing.
    start("first", /*generation=*/1);
    EXPECT_FALSE(std::filesystem::exists(open));
    MakeFolders(*files, open);
  });
  start("second");
  EXPECT_FALSE(std::filesystem::exists(open));
  EXPECT_THAT(warnings, IsEmpty());
  // A life that began while the earlier one was ending holds what it saves as well.
  RunRanks(1, [&](World& world) {
    auto earlier = std::make_unique<CheckpointManager>(world, options("first", 0));
    CheckpointManager later(world, options("first", 1));
    earlier.reset();
    later.Save(1, SmallState(world, 1));
    MakeFolders(*files, open);
    start("second");
    EXPECT_TRUE(std::filesystem::exists(open));
    EXPECT_THAT(warnings, ElementsAre(HasSubstr("two_jobs': another job saves there, process ")));
  });
  std::filesystem::remove_all(folder);
}

// The disk's files, where something happens between the writing of the first nonce and its first reading.
class FilesWithAnEvent final : public ForwardingFiles {
 public:
  explicit FilesWithAnEvent(std::function<void()> event) : event_(std::move(event)) {}

  std::unique_ptr<FileReader> Open(const std::string& path) override {
    if (path.find(kNoncePrefix) != std::string::npos) std::call_once(has_happened_, event_);
    return files().Open(path);
  }
  std::unique_ptr<FileLock> TryLock(const std::string& path, absl::string_view text) override {
    return files().TryLock(path, text);
  }

 private:
  const std::function<void()> event_;
  std::once_flag has_happened_;
};

// A job that begins while the ranks of another one look whether they share the folder.
TEST(SaveFailuresTest, ASecondJobThatBeginsAtTheSameMomentLeavesTheFirstOnesNonce) {
  const std::string folder = testing::TempDir() + "/two_starts";
  std::filesystem::remove_all(folder);
  std::vector<std::string> warnings;
  const auto options = [&](const std::string& run_id, const std::shared_ptr<Files>& files) {
    return CheckpointOptions{
        .folder = folder, .run_id = run_id, .files = files, .warn = [&](const auto& line) {
          warnings.push_back(line);
        }};
  };
  const auto start_second = [&] {
    RunRanks(1, [&](World& world) { CheckpointManager(world, options("second", nullptr)); });
  };
  const auto files = std::make_shared<FilesWithAnEvent>(start_second);
  EXPECT_EQ(MessageOf([&] {
              RunRanks(2, [&](World& world) { CheckpointManager(world, options("first", files)); });
            }),
            "no error");
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("two_starts': another job saves there, process ")));
  EXPECT_THAT(files->List(folder), ElementsAre(kLockName));
  std::filesystem::remove_all(folder);
}

TEST(SaveFailuresTest, WhatIsNoUtf8IsNotChangedSilently) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    std::string name = "name", text = "gr\xc3\xbc\xc3\x9f";
    State state = SmallState(world, 2);
    state.Add("texts", MakeTextsState([&] { return StateTexts{{name, text}}; }));
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    manager.Save(1, state);
    text = "gr\xfc\xdf";
    EXPECT_THAT(MessageOf([&] { manager.Save(2, state); }),
                AllOf(HasSubstr("text 'name' is no UTF-8"), HasSubstr("0xFC")));
    name = "\xff";
    text = "";
    EXPECT_THAT(MessageOf([&] { manager.Save(2, state); }), HasSubstr("text '\\xff' is no UTF-8"));
  });
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1));
  EXPECT_EQ(ReadManifest(*files, kFolder, 1).texts.at("name"), "gr\xc3\xbc\xc3\x9f");
}

}  // namespace
}  // namespace weft
