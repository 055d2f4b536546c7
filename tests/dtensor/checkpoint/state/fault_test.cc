// Disks that fail, fill up or write less than they are given; files that are cut or changed.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kFolder[] = "runs";

// Errors of the ranks of a save, in the order of the ranks; "no error".
std::vector<std::string> SaveErrors(World& world, CheckpointManager& manager, int64_t step,
                                    const State& state) {
  const std::string message = MessageOf([&] {
    manager.Save(step, state);
    manager.Wait();
  });
  return Agreement(world, std::chrono::minutes(1)).AllGather(message);
}

// Whichever change of the disk fails, for whatever reason: every rank throws one and the same error, what was there stays,
// nothing is left over, the same step can be saved then, and the next save is well.
void FailEverywhere(absl::StatusCode code, const std::string& expected, bool background) {
  int64_t num_failed = 0;
  for (int64_t index = 0;; ++index) {
    const auto files = std::make_shared<CrashFiles>();
    int64_t num_changes = 0;
    RunRanks(2, [&](World& world) {
      const State state = SmallState(world, 2);
      CheckpointManager manager(world,
                                {.folder = kFolder, .keep = 2, .background = background, .files = files});
      FillState(state, 1);
      manager.Save(1, state);
      manager.Wait();
      OnFirst(world, [&] { files->FailAt(index, code); });
      FillState(state, 2);
      const std::vector<std::string> errors = SaveErrors(world, manager, 2, state);
      OnFirst(world, [&] {
        num_changes = files->num_changes();
        files->FailNever();
      });
      for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
      if (errors[0] == "no error") {
        EXPECT_EQ(manager.latest_step(), 2);
      } else {
        EXPECT_THAT(errors[0], HasSubstr(expected));
        if (world.rank() == 0) ++num_failed;
      }
      OnFirst(world, [&] {
        for (const int64_t step : ListSteps(*files, kFolder)) {
          EXPECT_THAT(VerifyStep(*files, kFolder, step).problems, IsEmpty()) << "change " << index;
        }
        EXPECT_EQ(ListSteps(*files, kFolder).front(), 1);
        if (errors[0] != "no error") {
          EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(1)) << "change " << index;
        }
      });
      EXPECT_EQ(SaveErrors(world, manager, 2, state)[0], "no error") << "change " << index;
      FillState(state, 3);
      manager.Save(3, state);
      manager.Wait();
      OnFirst(world, [&] { EXPECT_THAT(VerifyStep(*files, kFolder, 3).problems, IsEmpty()); });
    });
    if (index >= num_changes) break;
  }
  EXPECT_GT(num_failed, 15);
}

TEST(FaultTest, AFullDisk) {
  FailEverywhere(absl::StatusCode::kResourceExhausted, "No space left on device", /*background=*/false);
}

TEST(FaultTest, ABrokenDiskInTheBackground) {
  FailEverywhere(absl::StatusCode::kDataLoss, "Input/output error", /*background=*/true);
}

// The disk is full from a point on: even what is to be removed is still there, and the old step is.
TEST(FaultTest, ADiskThatStaysFull) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    TestRun run(world, SpreadCases()[1]);
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    FillState(run.state, 1);
    manager.Save(1, run.state);
    OnFirst(world, [&] { files->FailAt(7, absl::StatusCode::kResourceExhausted, /*from_then_on=*/true); });
    const std::vector<std::string> errors = SaveErrors(world, manager, 2, run.state);
    EXPECT_THAT(errors[0], HasSubstr("No space left on device"));
    EXPECT_EQ(errors[0], errors[1]);
  });
  files->FailNever();
  RunRanks(2, [&](World& world) {
    TestRun run(world, SpreadCases()[1]);
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    EXPECT_EQ(manager.Resume(run.state), 1);
    EXPECT_EQ(CountWrongBytes(run.state, 1), 0);
  });
  EXPECT_THAT(files->List(kFolder), ElementsAre("latest", "step-000000001"));  // leftovers are gone
}

TEST(FaultTest, ShortWrites) {
  const auto files = std::make_shared<CrashFiles>();
  files->set_longest_write(1000);
  RunRanks(2, [&](World& world) {
    TestRun run(world, SpreadCases()[1]);
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    FillState(run.state, 1);
    manager.Save(1, run.state);
  });
  EXPECT_THAT(VerifyStep(*files, kFolder, 1).problems, IsEmpty());
}

// One bit anywhere in any file of a step, or the end of one missing: verify names the file, a run takes the step before or
// says what is wrong.
TEST(FaultTest, DamageIsFoundAndNamed) {
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    TestRun run(world, SpreadCases()[3]);
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    for (const int64_t step : {1, 2}) {
      FillState(run.state, static_cast<uint64_t>(step));
      manager.Save(step, run.state);
    }
  });
  const DiskImage image = files->image();
  for (const std::string& name : files->List("runs/step-000000002")) {
    const std::string path = "runs/step-000000002/" + name;
    const int64_t size = *files->SizeOf(path);
    for (int64_t i = 0; i < 60; ++i) {
      CrashFiles damaged(image);
      const bool is_cut = i % 3 == 0;
      if (is_cut) {
        damaged.Replace(path, files->BytesOf(path).substr(0, static_cast<size_t>(size * i / 60)));
      } else {
        damaged.Damage(path, size * i / 60);
      }
      const std::vector<std::string> problems = VerifyStep(damaged, kFolder, 2).problems;
      ASSERT_FALSE(problems.empty()) << path << " at " << size * i / 60;
      EXPECT_THAT(problems[0], HasSubstr(name));
      const FoundStep found = FindLatestStep(damaged, kFolder);
      ASSERT_TRUE(found.step.has_value());
      if (is_cut || name == "manifest.json") {
        EXPECT_EQ(found.step, 1);
        EXPECT_THAT(found.skipped, testing::Not(IsEmpty()));
      }
    }
  }
  // An element that has changed is found by whoever reads the piece.
  const std::string path = "runs/step-000000002/rank-00000.safetensors";
  files->Damage(path, *files->SizeOf(path) - 3);
  RunRanks(2, [&](World& world) {
    TestRun run(world, SpreadCases()[3]);
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    EXPECT_THAT(MessageOf([&] { manager.Resume(run.state); }),
                AnyOf(HasSubstr("rank-00000.safetensors': the elements of tensor '")));
  });
}

// Elements that have changed are found on every mesh: also where no rank reads all of the piece that they are in. Whatever
// is found there is found before anything is changed.
TEST(FaultTest, DamageIsFoundOnAnotherMesh) {
  struct Pair {
    int from = 0, to = 0;
    bool in_parts = false;  // of the tensor of which a byte changes, no rank reads a whole piece
  };
  for (const Pair& pair : {Pair{0, 4, true}, Pair{4, 7, false}, Pair{5, 4, false}, Pair{2, 1, false}}) {
    const auto files = std::make_shared<CrashFiles>();
    const SpreadCase &from = SpreadCases()[pair.from], &to = SpreadCases()[pair.to];
    RunRanks(from.num_ranks(), [&](World& world) {
      TestRun run(world, from);
      CheckpointManager manager(world, {.folder = kFolder, .files = files});
      FillState(run.state, 1);
      manager.Save(1, run.state);
    });
    const DiskImage image = files->image();
    for (const auto& [name, file] : ReadManifest(*files, kFolder, 1).files) {
      const std::string path = "runs/step-000000001/" + name;
      const PieceTable table = ReadPieceTable(*files->Open(path));
      int number = 0;
      for (const auto& [tensor, record] : table) {
        if (number++ % 7 != 0) continue;  // of the tensors of all parts
        const auto damaged = std::make_shared<CrashFiles>(image);
        damaged->Damage(path, record.offset + record.num_bytes() / 2);
        RunRanks(to.num_ranks(), [&](World& world) {
          TestRun run(world, to);
          FillState(run.state, 2);
          CheckpointManager manager(world, {.folder = kFolder, .files = damaged});
          EXPECT_THAT(MessageOf([&] { manager.Load(1, run.state); }),
                      HasSubstr(name + "': the elements of tensor '" + tensor + "'"));
          if (pair.in_parts && record.box.shape.num_elements() >= 8) {
            EXPECT_EQ(CountWrongBytes(run.state, 2), 0) << tensor;
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace weft
