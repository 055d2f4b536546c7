// Folders whose steps turn out to be broken: what a start says, and what the next one goes on from.

#include "dtensor/checkpoint/state/broken_step.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/memory/test_nodes.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr char kFolder[] = "runs";

// Two tensors on two ranks, of which one does not change.
struct Tuned {
  explicit Tuned(World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const Layout split = Layout(1, 1).WithShard(0, 0);
    frozen = Full(context, DType::kF32, {1001}, 1).Redistribute(split);
    trained = Full(context, DType::kF32, {1001}, 2).Redistribute(split);
    state.Add("tensors",
              MakeTensorState([tensors = std::vector<std::pair<std::string, DTensor>>{
                                   {"frozen", frozen}, {"trained", trained}}] { return tensors; }));
  }

  DTensor frozen, trained;
  State state;
};

// Of a start that loads.
std::string Start(const std::shared_ptr<CrashFiles>& files, std::optional<int64_t>* step) {
  return MessageOf([&] {
    RunRanks(2, [&](World& world) {
      Tuned tuned(world);
      CheckpointManager manager(world,
                                {.folder = kFolder, .keep = 0, .files = files, .warn = [](const auto&) {}});
      const std::optional<int64_t> resumed = manager.Resume(tuned.state);
      if (world.rank() == 0) *step = resumed;
    });
  });
}

// Steps 1 to 6: 3 has the frozen elements of 4, 5 and 6; 1 and 2 have others.
std::shared_ptr<CrashFiles> SaveSix() {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    Tuned tuned(world);
    CheckpointManager manager(world, {.folder = kFolder, .keep = 0, .incremental = true, .files = files});
    for (int64_t step = 1; step <= 6; ++step) {
      if (step == 3) FillTensor(tuned.frozen.ToLocal(), 5);
      FillTensor(tuned.trained.ToLocal(), 10.0 * static_cast<double>(step));
      manager.Save(step, tuned.state);
    }
  });
  EXPECT_THAT(ReadManifest(*files, kFolder, 6).refers_to, ElementsAre(3));
  EXPECT_THAT(ReadManifest(*files, kFolder, 2).refers_to, ElementsAre(1));
  return files;
}

// A byte of the elements of a step, of rank 1's tensor "frozen", which stands before "trained" in the file.
void DamageFrozen(CrashFiles& files, const std::string& step) {
  const std::string path = "runs/" + step + "/rank-00001.safetensors";
  files.Damage(path, *files.SizeOf(path) - 2000 - 4);
}

TEST(BrokenStepTest, AllStepsThatReferToABrokenFileGoAtOnce) {
  const std::shared_ptr<CrashFiles> files = SaveSix();
  DamageFrozen(*files, "step-000000003");
  std::optional<int64_t> step;
  EXPECT_THAT(
      Start(files, &step),
      AllOf(HasSubstr("step-000000003/rank-00001.safetensors': the elements of tensor 'frozen'"),
            HasSubstr("what is broken lies in 'runs/step-000000003/rank-00001.safetensors', which 4 steps "
                      "have elements in; the steps are now 'runs/step-000000006.broken', "
                      "'runs/step-000000005.broken', 'runs/step-000000004.broken', "
                      "'runs/step-000000003.broken', and the next start takes an older one")));
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 2));
  EXPECT_EQ(Start(files, &step), "no error");
  EXPECT_EQ(step, 2);
}

// Whether others have what is broken cannot be told then: they show it at their own starts.
TEST(BrokenStepTest, AnotherStepThatCannotBeReadKeepsNoBrokenOne) {
  const std::shared_ptr<CrashFiles> files = SaveSix();
  DamageFrozen(*files, "step-000000003");
  files->FailReads("step-000000001/rank-", absl::StatusCode::kFailedPrecondition);
  std::optional<int64_t> step;
  EXPECT_THAT(Start(files, &step),
              AllOf(HasSubstr("; which other steps have it cannot be read: "),
                    HasSubstr("; the step is now 'runs/step-000000006.broken', and the next start takes an "
                              "older one")));
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 2, 3, 4, 5));
}

// A step that was removed and written anew has other elements where those lay that later steps refer to: these are broken, it
// is not.
TEST(BrokenStepTest, AStepWrittenAnewStaysWhereOthersReferToTheFormerOne) {
  const std::shared_ptr<CrashFiles> files = SaveSix();
  RunRanks(2, [&](World& world) {
    Tuned tuned(world);
    CheckpointManager manager(world, {.folder = kFolder, .keep = 0, .incremental = true, .files = files});
    manager.Load(2, tuned.state);
    FillTensor(tuned.frozen.ToLocal(), 7);
    FillTensor(tuned.trained.ToLocal(), 30);
    OnFirst(world, [&] { RemoveFolder(*files, "runs/step-000000003"); });
    manager.Save(3, tuned.state);
  });
  EXPECT_THAT(InspectStep(*files, kFolder, 6).problems, IsEmpty());
  std::optional<int64_t> step;
  EXPECT_THAT(Start(files, &step),
              HasSubstr("what is broken lies in 'runs/step-000000003/rank-00000.safetensors', "
                        "'runs/step-000000003/rank-00001.safetensors', which 3 steps have elements in; the "
                        "steps are now 'runs/step-000000006.broken', 'runs/step-000000005.broken', "
                        "'runs/step-000000004.broken', and the next start takes an older one"));
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1, 2, 3));
  EXPECT_EQ(Start(files, &step), "no error");
  EXPECT_EQ(step, 3);
}

// What is broken in the step's own file takes no other step with it.
TEST(BrokenStepTest, AStepThatIsBrokenItselfGoesAlone) {
  const std::shared_ptr<CrashFiles> files = SaveSix();
  const std::string path = "runs/step-000000006/rank-00000.safetensors";
  files->Damage(path, *files->SizeOf(path) - 1);
  std::optional<int64_t> step;
  EXPECT_THAT(
      Start(files, &step),
      AllOf(
          HasSubstr(path), Not(HasSubstr("what is broken lies in")),
          HasSubstr("the step is now 'runs/step-000000006.broken', and the next start takes an older one")));
  EXPECT_EQ(Start(files, &step), "no error");
  EXPECT_EQ(step, 5);
}

// With a snapshot in memory a folder of which no step is whole is no end; without one it is.
TEST(BrokenStepTest, ASnapshotOutlivesTheLastWholeStep) {
  const auto files = std::make_shared<CrashFiles>();
  TestNodes nodes(1, 2);
  std::vector<std::string> lines;
  const auto options = [&](const World& world, int64_t generation) {
    return CheckpointOptions{.folder = kFolder,
                             .generation = generation,
                             .snapshot_every = 2,
                             .snapshot_memory = nodes.MemoryOf(world.rank()),
                             .files = files,
                             .warn = [&](const std::string& line) { lines.push_back(line); }};
  };
  RunRanks(2, [&](World& world) {
    const State state = SmallState(world, 2);
    CheckpointManager manager(world, options(world, 0));
    FillState(state, 1);
    manager.Save(1, state);
    FillState(state, 2);
    manager.AfterStep(2, state);
    manager.Wait();
  });
  files->Damage("runs/step-000000001/manifest.json", 40);
  RunRanks(2, [&](World& world) {
    State state = SmallState(world, 2);
    CheckpointManager manager(world, options(world, 1));
    EXPECT_EQ(manager.latest_step(), std::nullopt);
    EXPECT_EQ(manager.Resume(state), 2);
    EXPECT_EQ(CountWrongBytes(state, 2), 0);
    manager.Save(3, state);
  });
  EXPECT_THAT(lines, testing::Contains(HasSubstr("'runs' has no step that is whole: ")));
  files->Damage("runs/step-000000003/manifest.json", 40);
  nodes.Lose(0);
  nodes.Add();
  EXPECT_THAT(
      MessageOf([&] { RunRanks(2, [&](World& world) { CheckpointManager(world, options(world, 2)); }); }),
      HasSubstr("'runs' has no step that is whole: "));
}

}  // namespace
}  // namespace weft
