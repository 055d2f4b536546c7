// What becomes of the steps in a folder beside the one that is saved: which go, which stay, which are set aside.

#include "dtensor/checkpoint/state/step_writer.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/counting_files.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr char kFolder[] = "runs";

// Saves steps, one after the other, in a life of one job.
void SaveSteps(const std::shared_ptr<CrashFiles>& files, const std::vector<int64_t>& steps, int keep = 0) {
  RunRanks(2, [&](World& world) {
    const State state = SmallState(world, 2);
    CheckpointManager manager(world, {.folder = kFolder, .keep = keep, .files = files, .warn = [](auto&) {}});
    for (const int64_t step : steps) {
      FillState(state, static_cast<uint64_t>(step));
      manager.Save(step, state);
    }
  });
}

void Cut(CrashFiles& files, const std::string& path) {
  files.Replace(path, files.BytesOf(path).substr(0, 20));
}

TEST(StepWriterTest, AStepThatIsNotWholeDoesNotCount) {
  const auto files = std::make_shared<CrashFiles>();
  SaveSteps(files, {900, 1000});
  Cut(*files, "runs/step-000001000/rank-00001.safetensors");  // the manifest is whole
  SaveSteps(files, {950}, /*keep=*/1);
  EXPECT_EQ(FindLatestStep(*files, kFolder).step, 950);
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(950, 1000));
}

// A program that went back: what it saves stays, and so does what lies above.
TEST(StepWriterTest, TheStepJustSavedStaysBelowHigherOnes) {
  const auto files = std::make_shared<CrashFiles>();
  SaveSteps(files, {400, 500, 900, 1000});
  SaveSteps(files, {600}, /*keep=*/2);
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(500, 600, 900, 1000));
  EXPECT_THAT(VerifyStep(*files, kFolder, 600).problems, IsEmpty());
}

// The headers of what another life has left are read once, those of what this one has written never.
TEST(StepWriterTest, HeadersOfOldStepsAreNotReadAtEachSave) {
  const std::string folder = testing::TempDir() + "/known_steps";
  std::filesystem::remove_all(folder);
  for (const int64_t first : {1, 11}) {
    const auto files = std::make_shared<CountingFiles>();
    RunRanks(2, [&](World& world) {
      const State state = SmallState(world, 2);
      CheckpointManager manager(world, {.folder = folder, .keep = 3, .files = files});
      size_t num_reads = 0;
      for (int64_t step = first; step < first + 5; ++step) {
        manager.Save(step, state);
        if (world.rank() != 0) continue;  // which alone reads
        if (step == first) num_reads = files->reads().size();
        EXPECT_EQ(files->reads().size(), num_reads) << step;
      }
    });
    EXPECT_EQ(files->reads().empty(), first == 1);
    EXPECT_THAT(ListSteps(*files, folder), ElementsAre(first + 2, first + 3, first + 4));
  }
  std::filesystem::remove_all(folder);
}

// What is known of a step holds while its files have their sizes.
TEST(StepWriterTest, AKnownStepThatLosesAFileNoLongerCounts) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    const State state = SmallState(world, 2);
    CheckpointManager manager(world, {.folder = kFolder, .keep = 2, .files = files});
    for (int64_t step = 1; step <= 4; ++step) {
      if (step == 4) OnFirst(world, [&] { Cut(*files, "runs/step-000000003/rank-00001.safetensors"); });
      manager.Save(step, state);
    }
  });
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(2, 3, 4));
}

TEST(StepWriterTest, WhatCannotBeReadIsNotBroken) {
  const auto files = std::make_shared<CrashFiles>();
  SaveSteps(files, {1, 2});
  for (const auto code : {absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnimplemented,
                          absl::StatusCode::kResourceExhausted}) {
    for (const char* path : {"step-000000002/manifest.json", "step-000000002/rank-00000.safetensors"}) {
      files->FailReads(path, code);
      EXPECT_THAT(MessageOf([&] { FindLatestStep(*files, kFolder); }), HasSubstr(path));
      EXPECT_THAT(MessageOf([&] { SaveSteps(files, {3}, /*keep=*/1); }), HasSubstr(path));
      files->FailReads("", code);
      EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 2));
    }
  }
  EXPECT_EQ(FindLatestStep(*files, kFolder).step, 2);
}

// A job never begins anew beside steps of which it can take none.
TEST(StepWriterTest, AFolderOfBrokenStepsAloneIsAnError) {
  const auto files = std::make_shared<CrashFiles>();
  SaveSteps(files, {1});
  Cut(*files, "runs/step-000000001/manifest.json");
  EXPECT_THAT(MessageOf([&] { SaveSteps(files, {2}); }),
              HasSubstr("'runs' has no step that is whole: 'runs/step-000000001/manifest.json'"));
  EXPECT_THAT(files->List(kFolder), ElementsAre("latest", "step-000000001"));
}

TEST(StepWriterTest, ABrokenStepIsSetAside) {
  const auto files = std::make_shared<CrashFiles>();
  SaveSteps(files, {1, 2});
  for (const char* name : {"step-000000002.broken", "step-000000002.broken-2"}) {
    Cut(*files, "runs/step-000000002/rank-00000.safetensors");
    SaveSteps(files, {2});
    EXPECT_THAT(VerifyStep(*files, kFolder, 2).problems, IsEmpty());
    EXPECT_THAT(files->List(std::string("runs/") + name),
                ElementsAre("manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"));
  }
}

// The next start takes the step before; without one it says what is there.
TEST(StepWriterTest, AStepWhoseElementsAreBrokenGivesWay) {
  const auto files = std::make_shared<CrashFiles>();
  SaveSteps(files, {1, 2});
  const auto resume = [&](int64_t step) {
    std::string message;
    RunRanks(2, [&](World& world) {
      State state = SmallState(world, 2);
      const std::string told = MessageOf([&] {
        CheckpointManager manager(world, {.folder = kFolder, .files = files});
        EXPECT_EQ(manager.Resume(state), step);
        EXPECT_EQ(CountWrongBytes(state, static_cast<uint64_t>(step)), 0);
      });
      if (world.rank() == 0) message = told;
    });
    return message;
  };
  const auto damage = [&](const std::string& path) { files->Damage(path, *files->SizeOf(path) - 1); };
  damage("runs/step-000000002/rank-00001.safetensors");
  const std::string told = resume(2);
  EXPECT_THAT(told, HasSubstr("step-000000002/rank-00001.safetensors': the elements of tensor"));
  EXPECT_THAT(told, HasSubstr("the step is now 'runs/step-000000002.broken'"));
  EXPECT_EQ(resume(1), "no error");
  damage("runs/step-000000001/rank-00001.safetensors");
  EXPECT_THAT(resume(1), HasSubstr("runs/step-000000001.broken"));
  EXPECT_THAT(resume(0), HasSubstr("'runs' has no step that is whole: 'runs/step-000000001.broken'"));
}

// Two lives of one generation, of which the first has not ended, write into folders of their own.
TEST(StepWriterTest, LivesDoNotShareAFolder) {
  std::vector<std::string> temporary;
  for (int life = 0; life < 2; ++life) {
    const auto files = std::make_shared<CrashFiles>();
    SaveSteps(files, {7});
    for (const DiskOp& op : files->log()) {
      const std::string name = op.path.substr(op.path.rfind('/') + 1);
      if (op.kind == DiskOp::kNames && IsTemporaryStepName(name)) temporary.push_back(name);
    }
  }
  ASSERT_EQ(temporary.size(), 2u);
  EXPECT_THAT(temporary[0], testing::MatchesRegex("step-000000007\\.0-[0-9a-f]+\\.tmp"));
  EXPECT_NE(temporary[0], temporary[1]);
}

// A file that is not where rank 0 publishes: another disk.
TEST(StepWriterTest, AStepThatLacksAFileIsNotPublished) {
  const std::vector<std::shared_ptr<CrashFiles>> files = {std::make_shared<CrashFiles>(),
                                                          std::make_shared<CrashFiles>()};
  RunRanks(2, [&](World& world) {
    files[world.rank()]->MakeFolder(kFolder);
    Agreement agreement(world, std::chrono::minutes(1));
    StepToWrite write;
    write.manifest.step = 1;
    write.manifest.world = 2;
    PieceToSave& piece = write.pieces.emplace_back();
    piece.name = "a";
    piece.record.box = {{2}, {world.rank()}, {1}};
    piece.elements = Tensor::FromValues<float>({1}, {1});
    KnownSteps known;
    EXPECT_THAT(MessageOf([&] { WriteStep(agreement, *files[world.rank()], kFolder, write, &known); }),
                HasSubstr("rank-00001.safetensors' is not there"));
  });
  EXPECT_THAT(files[0]->List(kFolder), IsEmpty());
}

TEST(StepWriterTest, LeftoversGoAndStopNoStart) {
  const auto files = std::make_shared<CrashFiles>();
  SaveSteps(files, {1});
  for (const char* name : {"step-000000002.0.tmp", "step-000000003.1-12ab.tmp"}) {
    files->MakeFolder(std::string("runs/") + name);
    WriteText(*files, std::string("runs/") + name + "/rank-00000.safetensors", "");
  }
  WriteText(*files, "runs/.nonce-0123", "0123");
  WriteText(*files, "runs/latest.tmp", "step");
  files->FailRemoves("step-000000002.0.tmp/rank");
  std::vector<std::string> warnings;
  RunRanks(1, [&](World& world) {
    CheckpointManager manager(world, {.folder = kFolder,
                                      .files = files,
                                      .warn = [&](const std::string& line) { warnings.push_back(line); }});
    EXPECT_EQ(manager.latest_step(), 1);
  });
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("step-000000002.0.tmp")));
  EXPECT_THAT(files->List(kFolder), ElementsAre("latest", "step-000000001", "step-000000002.0.tmp"));
}

}  // namespace
}  // namespace weft
