// Saves that write only what has changed, and what becomes of the steps that they refer to.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/steps_verdict.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFolder[] = "runs";

TEST(IncrementalSavesTest, ReferToWhatHasNotChanged) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const Layout split = Layout(1, 1).WithShard(0, 0);
    const auto make = [&](double value) {
      return Full(context, DType::kF32, {1001}, value).Redistribute(split);
    };
    const DTensor frozen = make(1), trained = make(2);
    State state;
    state.Add("tensors", TensorsPart({{"frozen", frozen}, {"trained", trained}}));
    CheckpointManager manager(world, {.folder = kFolder, .keep = 1, .incremental = true, .files = files});
    const auto fill = [&](const DTensor& tensor, double value) { FillTensor(tensor.ToLocal(), value); };
    int64_t full = 0;
    for (int64_t step = 1; step <= 4; ++step) {
      fill(trained, 10.0 * static_cast<double>(step));
      manager.Save(step, state);
      if (step == 1) full = manager.last_save().written_bytes;
      EXPECT_LE(manager.last_save().written_bytes, step > 1 ? full - 1900 : full);
    }
    EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 4));  // not a chain: all refer to the first
    EXPECT_THAT(ReadManifest(*files, kFolder, 4).refers_to, ElementsAre(1));
    fill(frozen, 0), fill(trained, 0);
    manager.Load(4, state);
    EXPECT_EQ(frozen.FullTensor().ToVector<float>(), std::vector<float>(1001, 1));
    EXPECT_EQ(trained.FullTensor().ToVector<float>(), std::vector<float>(1001, 40));
    EXPECT_THAT(VerifyStep(*files, kFolder, 4).problems, IsEmpty());
    // One element changes: all of the tensor's piece on its rank is written, and the first step is let go of.
    if (world.rank() == 0) frozen.ToLocal().data<float>()[500] = 5;
    if (world.rank() == 1) frozen.ToLocal().data<float>()[0] = 5;
    manager.Save(5, state);
    EXPECT_THAT(ReadManifest(*files, kFolder, 5).refers_to, ElementsAre(4));  // what was trained
    manager.Load(5, state);
    EXPECT_EQ(frozen.FullTensor().ToVector<float>()[500], 5);
  });
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(4, 5));
  // Damage in the step that is referred to is found from the one that refers.
  const std::string path = "runs/step-000000004/rank-00000.safetensors";
  files->Damage(path, *files->SizeOf(path) - 1);
  EXPECT_THAT(VerifyStep(*files, kFolder, 5).problems, ElementsAre(HasSubstr(path)));
  files->Remove(path);
  EXPECT_EQ(FindLatestStep(*files, kFolder).step, std::nullopt);
}

// Two tensors that change in turn, so that each step refers to the one before.
struct TurnsRun {
  TurnsRun(World& world, const std::shared_ptr<CrashFiles>& files)
      : context(Bind(world, DeviceMesh())),
        manager(world, {.folder = kFolder, .keep = 1, .incremental = true, .files = files}) {
    for (const int64_t count : {10, 20}) tensors.push_back(Full(context, DType::kF32, {count}, 0));
    state.Add("tensors", TensorsPart({{"a", tensors[0]}, {"b", tensors[1]}}));
  }
  void Save(int64_t step) {
    FillTensor(tensors[step % 2].ToLocal(), static_cast<double>(step));
    manager.Save(step, state);
  }

  IntrusivePtr<MeshContext> context;
  CheckpointManager manager;
  std::vector<DTensor> tensors;
  State state;
};

TEST(IncrementalSavesTest, OldStepsGoWhateverHasBecomeOfThoseThatTheyReferTo) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(1, [&](World& world) {
    TurnsRun run(world, files);
    for (int64_t step = 1; step <= 6; ++step) {
      run.Save(step);
      EXPECT_THAT(VerifyStep(*files, kFolder, step).problems, IsEmpty());
      if (step == 1) continue;
      EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(step - 1, step));
      // From the third on, the step before is there only for elements of the newest. That is no defect.
      const StepsVerdict seen = InspectSteps(*files, kFolder, {step - 1, step}, /*with_elements=*/true);
      EXPECT_EQ(seen.steps.at(step - 1).problems.empty(), step == 2);
      EXPECT_EQ(seen.IsKeptForOthers(step - 1), step > 2);
      EXPECT_THAT(seen.ReferredToBy(step - 1), ElementsAre(step));
      EXPECT_FALSE(seen.HasBroken());
    }
    for (const DTensor& tensor : run.tensors) FillTensor(tensor.ToLocal(), 7);
    run.manager.Save(7, run.state);
    EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(7));
  });
}

// One tensor that never changes, and one that does.
struct TunedRun {
  TunedRun(World& world, const std::shared_ptr<CrashFiles>& files, int keep)
      : context(Bind(world, DeviceMesh())),
        frozen(Full(context, DType::kF32, {1000}, 1)),
        trained(Full(context, DType::kF32, {1000}, 0)),
        manager(world, {.folder = kFolder, .keep = keep, .incremental = true, .files = files}) {
    state.Add("tensors", TensorsPart({{"frozen", frozen}, {"trained", trained}}));
  }
  void Save(int64_t step) {
    FillTensor(trained.ToLocal(), static_cast<double>(step));
    manager.Save(step, state);
  }

  IntrusivePtr<MeshContext> context;
  DTensor frozen, trained;
  CheckpointManager manager;
  State state;
};

// Somebody has removed the file that would be referred to, or it has lost its end: the elements are still here. Nothing that is
// broken is removed.
TEST(IncrementalSavesTest, WhatAnEarlierFileHasLostIsWrittenAnew) {
  for (const bool is_cut : {false, true}) {
    const auto files = std::make_shared<CrashFiles>();
    RunRanks(1, [&](World& world) {
      TunedRun run(world, files, /*keep=*/1);
      run.Save(1);
      run.Save(2);
      EXPECT_THAT(ReadManifest(*files, kFolder, 2).refers_to, ElementsAre(1));
      const std::string path = "runs/step-000000001/rank-00000.safetensors";
      if (is_cut) {
        const std::string bytes = files->BytesOf(path);
        files->Replace(path,
                       bytes.substr(0, bytes.size() - 4001));  // "trained", which stands last, and a byte
      } else {
        files->Remove(path);
      }
      run.Save(3);
      EXPECT_THAT(ReadManifest(*files, kFolder, 3).refers_to, IsEmpty());
      run.Save(4);
      EXPECT_THAT(ReadManifest(*files, kFolder, 4).refers_to, ElementsAre(3));
    });
    EXPECT_THAT(VerifyStep(*files, kFolder, 4).problems, IsEmpty());
    EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 2, 3, 4));
  }
}

// A program goes back, and saves; then a step above is removed, as the error of a save of its number says.
TEST(IncrementalSavesTest, NoStepRefersToAHigherOne) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(1, [&](World& world) { TunedRun(world, files, /*keep=*/0).Save(1); });
  RunRanks(1, [&](World& world) {
    TunedRun run(world, files, /*keep=*/0);
    run.Save(3);
    run.manager.Load(1, run.state);
    run.Save(2);
    EXPECT_THAT(ReadManifest(*files, kFolder, 2).refers_to, IsEmpty());
    RemoveFolder(*files, "runs/step-000000003");
    EXPECT_EQ(FindLatestStep(*files, kFolder).step, 2);
    run.Save(3);
    EXPECT_THAT(ReadManifest(*files, kFolder, 3).refers_to, ElementsAre(2));
  });
}

// A program goes back, and comes to the number of a step that is there only for elements of a higher one, which is whole: it
// is not set aside, as a broken one would be, since that would break the higher one.
TEST(IncrementalSavesTest, AStepThatStaysForOthersIsNotWrittenAnew) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(1, [&](World& world) {
    TunedRun run(world, files, /*keep=*/1);
    const DTensor third = Full(run.context, DType::kF32, {1000}, 0);
    run.state.Add("third", TensorsPart({{"third", third}}));
    run.Save(1);
    run.Save(2);
    FillTensor(third.ToLocal(), 33);
    run.manager.Save(3, run.state);
    run.Save(4);
    EXPECT_THAT(ReadManifest(*files, kFolder, 3).refers_to, ElementsAre(1, 2));
    EXPECT_THAT(ReadManifest(*files, kFolder, 4).refers_to, ElementsAre(1, 3));
    ASSERT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 3, 4));
    run.manager.Load(1, run.state);
    EXPECT_EQ(MessageOf([&] { run.Save(3); }),
              "'runs/step-000000003' is there already, and has elements of step 4: to write this step anew, "
              "remove what refers to it");
    EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 3, 4));
    EXPECT_THAT(VerifyStep(*files, kFolder, 4).problems, IsEmpty());
    RemoveFolder(*files, "runs/step-000000004");
    run.Save(3);
    EXPECT_THAT(VerifyStep(*files, kFolder, 3).problems, IsEmpty());
  });
}

// Changed elements are a defect: of the step in which they lie, and of those that refer to them.
TEST(IncrementalSavesTest, DamageIsNotTakenForWhatHasGone) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(1, [&](World& world) {
    TurnsRun run(world, files);
    for (int64_t step = 1; step <= 3; ++step) run.Save(step);
  });
  const std::string path = "runs/step-000000002/rank-00000.safetensors";
  files->Damage(path, *files->SizeOf(path) - 1);
  const StepsVerdict seen = InspectSteps(*files, kFolder, {2, 3}, /*with_elements=*/true);
  EXPECT_FALSE(seen.IsKeptForOthers(2));
  EXPECT_THAT(seen.steps.at(3).problems, ElementsAre(HasSubstr(path)));
  EXPECT_TRUE(seen.HasBroken());
}

}  // namespace
}  // namespace weft
