// A crash at any instant of a save leaves the old step or the new one, whole, whatever the disk has kept of what was not
// made durable.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"

namespace weft {
namespace {

using testing::ElementsAre;

constexpr char kFolder[] = "runs/a";

// Seeds of a tensor's values in a step.
uint64_t AllChange(int64_t step, const std::string&) { return static_cast<uint64_t>(step); }

// "whole" changes in even steps alone, all else in odd ones: each step refers to the one before.
uint64_t ChangeInTurns(int64_t step, const std::string& name) {
  return static_cast<uint64_t>((step % 2 == 0) == (name == "whole") ? step : step - 1);
}

// A save on the record.
struct SaveLog {
  DiskImage before = {};
  std::vector<DiskOp> log = {};
  int64_t step = 2;  // there is the one before it, for good
  uint64_t (*seed_of)(int64_t step, const std::string& name) = AllChange;
};

// Saves step 1 for good, then step 2 on the record. `keep`: of the second.
SaveLog RecordSave(int num_ranks, int keep) {
  const auto files = std::make_shared<CrashFiles>();
  SaveLog save;
  RunRanks(num_ranks, [&](World& world) {
    State state = SmallState(world, num_ranks);
    CheckpointManager manager(world, {.folder = kFolder, .keep = keep, .files = files});
    FillState(state, 1);
    manager.Save(1, state);
    Agreement agreement(world, std::chrono::minutes(1));
    agreement.Agree({.part = [&] {
      if (world.rank() == 0) save.before = files->StartLog();
      return std::string();
    }});
    FillState(state, 2);
    manager.Save(2, state);
  });
  save.log = files->log();
  return save;
}

// The same of the first save of all, on an empty disk: the folder and those above it are made, too.
SaveLog RecordFirstSave() {
  const auto files = std::make_shared<CrashFiles>();
  SaveLog save = {.before = files->StartLog()};
  RunRanks(1, [&](World& world) {
    State state = SmallState(world, 1);
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    FillState(state, 2);
    manager.Save(2, state);
  });
  save.log = files->log();
  return save;
}

void Fill(const State& state, const SaveLog& save, int64_t step) {
  for (const auto& [name, part] : state.parts()) {
    for (const StateTensor& tensor : part->Tensors()) FillTensorOf(tensor, save.seed_of(step, tensor.name));
  }
}

// Steps 1 to 3 for good, then the fourth, which refers to the third and lets go of the second, to which the third refers.
SaveLog RecordIncrementalSave() {
  const auto files = std::make_shared<CrashFiles>();
  SaveLog save = {.step = 4, .seed_of = ChangeInTurns};
  RunRanks(1, [&](World& world) {
    State state = SmallState(world, 1);
    CheckpointManager manager(world, {.folder = kFolder, .keep = 1, .incremental = true, .files = files});
    for (int64_t step = 1; step <= 4; ++step) {
      if (step == 4) {
        EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(2, 3));
        save.before = files->StartLog();
      }
      Fill(state, save, step);
      manager.Save(step, state);
    }
  });
  EXPECT_THAT(ListSteps(*files, kFolder), ElementsAre(3, 4));
  EXPECT_THAT(ReadManifest(*files, kFolder, 4).refers_to, ElementsAre(3));
  save.log = files->log();
  return save;
}

// The step that a run would go on from, -1 if it would take one that is not as it was saved, 0 if none.
int64_t FoundIn(const DiskImage& image, const SaveLog& save) {
  const auto files = std::make_shared<CrashFiles>(image);
  const FoundStep found = FindLatestStep(*files, kFolder);
  if (!found.step) return 0;
  if (!VerifyStep(*files, kFolder, *found.step).problems.empty()) return -1;
  StepReader reader(files, kFolder, *found.step);
  for (const std::string& name : reader.Names()) {
    const TensorType& type = *reader.Find(name);
    const ShardBox box = WholeBox(type.shape);
    const Tensor read = reader.Read(name, box, MakeCpuAllocator());
    const std::vector<char> expected = BoxBytes(name, save.seed_of(*found.step, name), type.dtype, box);
    if (std::memcmp(read.data(), expected.data(), expected.size()) != 0) return -1;
  }
  return *found.step;
}

// The operation behind which the save is done: the folder's names are durable with the new one among them.
size_t DoneBehind(const SaveLog& save) {
  const std::vector<DiskOp>& log = save.log;
  for (size_t i = 0; i < log.size(); ++i) {
    if (log[i].kind == DiskOp::kNames && log[i].path == JoinPath(kFolder, StepName(save.step))) {
      for (size_t j = i + 1; j < log.size(); ++j) {
        if (log[j].kind == DiskOp::kSyncFolder && log[j].path == kFolder) return j + 1;
      }
      return i + 1;
    }
  }
  return log.size();
}

struct Counts {
  int64_t old_step = 0, new_step = 0, wrong = 0, total = 0;
};

// All crashes. `done`: behind how many operations the save says that it is done.
Counts CrashEverywhere(const SaveLog& save, size_t done) {
  Counts counts;
  for (size_t num_done = 0; num_done <= save.log.size(); ++num_done) {
    VisitCrashes(save.before, save.log, num_done, /*seed=*/num_done, /*samples=*/500,
                 [&](const DiskImage& image) {
                   const int64_t found = FoundIn(image, save);
                   const bool is_old = found == save.step - 1, is_new = found == save.step;
                   ++counts.total;
                   counts.old_step += is_old;
                   counts.new_step += is_new;
                   counts.wrong += (!is_old && !is_new) || (num_done >= done && !is_new);
                 });
  }
  return counts;
}

TEST(CrashTest, AlwaysTheOldStepOrTheNew) {
  for (const int num_ranks : {1, 2}) {
    for (const int keep : {3, 1}) {
      const SaveLog save = RecordSave(num_ranks, keep);
      const Counts counts = CrashEverywhere(save, DoneBehind(save));
      EXPECT_EQ(counts.wrong, 0) << num_ranks << " ranks, keep " << keep << ", of " << counts.total;
      EXPECT_GT(counts.old_step, 100);
      EXPECT_GT(counts.new_step, 20);
    }
  }
}

// What a writer does that leaves something out: crashes find it.
SaveLog Without(SaveLog save, DiskOp::Kind kind, const std::string& path_part) {
  const auto is_left_out = [&](const DiskOp& op) {
    return op.kind == kind && op.path.find(path_part) != std::string::npos;
  };
  const size_t before = save.log.size();
  save.log.erase(std::remove_if(save.log.begin(), save.log.end(), is_left_out), save.log.end());
  EXPECT_LT(save.log.size(), before) << path_part;
  return save;
}

TEST(CrashTest, AWriterThatForgetsASyncIsCaught) {
  const SaveLog save = RecordSave(1, 3);
  struct Mutant {
    DiskOp::Kind kind;
    const char* path;
  };
  for (const Mutant& mutant :
       {Mutant{DiskOp::kSyncFile, "rank-00000.safetensors"}, Mutant{DiskOp::kSyncFile, "manifest.json"},
        Mutant{DiskOp::kSyncFolder, "step-000000002.0-"}}) {
    const SaveLog broken = Without(save, mutant.kind, mutant.path);
    EXPECT_GT(CrashEverywhere(broken, DoneBehind(broken)).wrong, 0) << mutant.path;
  }
  // The parent's names: the save is done when it says so.
  SaveLog broken = save;
  const size_t done = DoneBehind(broken);
  ASSERT_EQ(broken.log[done - 1].kind, DiskOp::kSyncFolder);
  broken.log.erase(broken.log.begin() + static_cast<int64_t>(done) - 1);
  EXPECT_GT(CrashEverywhere(broken, done - 1).wrong, 0);
}

TEST(CrashTest, AnEmptyDisk) {
  const SaveLog save = RecordFirstSave();
  const size_t done = DoneBehind(save);
  int64_t found_none = 0, found_it = 0;
  for (size_t num_done = 0; num_done <= save.log.size(); ++num_done) {
    VisitCrashes(save.before, save.log, num_done, /*seed=*/num_done, /*samples=*/500,
                 [&](const DiskImage& image) {
                   const int64_t found = FoundIn(image, save);
                   EXPECT_TRUE(found == 2 || (found == 0 && num_done < done))
                       << found << " behind operation " << num_done;
                   found_none += found == 0;
                   found_it += found == 2;
                 });
  }
  EXPECT_GT(found_none, 100);
  EXPECT_GT(found_it, 20);
}

TEST(CrashTest, AManifestBeforeTheFilesIsCaught) {
  SaveLog save = RecordSave(1, 3);
  // What concerns the rank's file comes when the step has its name.
  const size_t done = DoneBehind(save);
  std::vector<DiskOp> first, late;
  for (size_t i = 0; i < done; ++i) {
    (save.log[i].path.find("rank-00000") != std::string::npos ? late : first).push_back(save.log[i]);
  }
  ASSERT_GE(late.size(), 4u);
  const size_t published = first.size();
  first.insert(first.end(), late.begin(), late.end());
  save.log = first;
  EXPECT_GT(CrashEverywhere(save, published).wrong, 0);
}

// A step that refers to another, whose own predecessor goes.
TEST(CrashTest, StepsThatReferToOthers) {
  const SaveLog save = RecordIncrementalSave();
  const Counts counts = CrashEverywhere(save, DoneBehind(save));
  EXPECT_EQ(counts.wrong, 0) << "of " << counts.total;
  EXPECT_GT(counts.old_step, 100);
  EXPECT_GT(counts.new_step, 20);
  // Let go of before the new step has its name, what the old one refers to is missed.
  SaveLog early = save;
  const auto rest = std::stable_partition(early.log.begin(), early.log.end(), [](const DiskOp& op) {
    return op.path.find("step-000000002") != std::string::npos;
  });
  ASSERT_NE(rest, early.log.begin());
  EXPECT_GT(CrashEverywhere(early, DoneBehind(early)).wrong, 0);
}

// Renamed or not, it is there; and once that is said to be done, the next start takes the one before.
TEST(CrashTest, AStepThatIsSetAside) {
  const SaveLog saved = RecordSave(1, 3);
  DiskImage image = saved.before;
  for (const DiskOp& op : saved.log) Apply(op, &image);
  CrashFiles files(image);
  SaveLog aside = {.before = files.StartLog()};
  EXPECT_EQ(SetStepAside(files, kFolder, 2), "runs/a/step-000000002.broken");
  aside.log = files.log();
  const auto num_wrong = [](const SaveLog& save) {
    int64_t wrong = 0;
    for (size_t num_done = 0; num_done <= save.log.size(); ++num_done) {
      VisitCrashes(save.before, save.log, num_done, /*seed=*/1, /*samples=*/500,
                   [&](const DiskImage& crashed) {
                     const int64_t found = FoundIn(crashed, save);
                     const int64_t aside =
                         CrashFiles(crashed).SizeOf("runs/a/step-000000002.broken/manifest.json").has_value();
                     wrong += found != (aside ? 1 : 2) || (num_done == save.log.size() && !aside);
                   });
    }
    return wrong;
  };
  EXPECT_EQ(num_wrong(aside), 0);
  EXPECT_GT(num_wrong(Without(aside, DiskOp::kSyncFolder, kFolder)), 0);
}

// A start on what a crash has left goes on from one of the two steps, and saves what comes after it.
void GoOnFrom(const DiskImage& image, const SaveLog& save, const CheckpointOptions& options) {
  const auto files = std::make_shared<CrashFiles>(image);
  CheckpointOptions with_files = options;
  with_files.files = files;
  with_files.warn = [](const std::string&) {};
  RunRanks(1, [&](World& world) {
    State state = SmallState(world, 1);
    CheckpointManager manager(world, with_files);
    const std::optional<int64_t> found = manager.Resume(state);
    ASSERT_TRUE(found && *found >= save.step - 1 && *found <= save.step);
    for (const auto& [name, part] : state.parts()) {
      for (const StateTensor& tensor : part->Tensors()) {
        const Tensor piece = OnHost(tensor.tensor.ToLocal());
        const std::vector<char> bytes =
            BoxBytes(tensor.name, save.seed_of(*found, tensor.name), piece.dtype(), tensor.tensor.LocalBox());
        EXPECT_EQ(std::memcmp(piece.data(), bytes.data(), bytes.size()), 0) << tensor.name;
      }
    }
    for (int64_t step = *found + 1; step <= save.step + 1; ++step) {
      Fill(state, save, step);
      manager.Save(step, state);
    }
  });
  SaveLog next = save;
  next.step = save.step + 1;
  EXPECT_EQ(FoundIn(files->image(), next), next.step);
  for (const std::string& name : files->List(kFolder)) {
    EXPECT_EQ(name.find(".tmp"), std::string::npos) << name;
    EXPECT_EQ(name.find(kNoncePrefix), std::string::npos) << name;
  }
}

TEST(CrashTest, TheNextStartGoesOn) {
  constexpr int64_t kEach = 3;  // a start costs more than a look
  const std::pair<SaveLog, CheckpointOptions> runs[] = {
      {RecordSave(1, 1), {.folder = kFolder, .keep = 1}},
      {RecordIncrementalSave(), {.folder = kFolder, .keep = 1, .incremental = true}}};
  for (const auto& [save, options] : runs) {
    int64_t number = 0, starts = 0;
    for (size_t num_done = 0; num_done <= save.log.size(); ++num_done) {
      VisitCrashes(save.before, save.log, num_done, /*seed=*/num_done, /*samples=*/500,
                   [&, &save = save, &options = options](const DiskImage& image) {
                     if (number++ % kEach != 0) return;
                     GoOnFrom(image, save, options);
                     ++starts;
                   });
    }
    EXPECT_GT(starts, 50);
  }
}

}  // namespace
}  // namespace weft
