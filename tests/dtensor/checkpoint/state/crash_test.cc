// A crash at any instant of a save leaves the old step or the new one, whole, whatever the disk has kept of what was not
// made durable.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"

namespace weft {
namespace {

constexpr char kFolder[] = "runs/a";

struct SaveLog {
  DiskImage before;
  std::vector<DiskOp> log;
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
  SaveLog save;
  save.before = files->StartLog();
  RunRanks(1, [&](World& world) {
    State state = SmallState(world, 1);
    CheckpointManager manager(world, {.folder = kFolder, .files = files});
    FillState(state, 2);
    manager.Save(2, state);
  });
  save.log = files->log();
  return save;
}

// The step that a run would go on from, -1 if it would take one that is not as it was saved, 0 if none.
int64_t FoundIn(const DiskImage& image) {
  const auto files = std::make_shared<CrashFiles>(image);
  const FoundStep found = FindLatestStep(*files, kFolder);
  if (!found.step) return 0;
  if (!VerifyStep(*files, kFolder, *found.step).problems.empty()) return -1;
  StepReader reader(files, kFolder, *found.step);
  for (const std::string& name : reader.Names()) {
    const TensorType& type = *reader.Find(name);
    const ShardBox box = WholeBox(type.shape);
    const Tensor read = reader.Read(name, box, MakeCpuAllocator());
    const std::vector<char> expected = BoxBytes(name, static_cast<uint64_t>(*found.step), type.dtype, box);
    if (std::memcmp(read.data(), expected.data(), expected.size()) != 0) return -1;
  }
  return *found.step;
}

// The operation behind which the save is done: the folder's names are durable with the new one among them.
size_t DoneBehind(const std::vector<DiskOp>& log) {
  for (size_t i = 0; i < log.size(); ++i) {
    if (log[i].kind == DiskOp::kNames && log[i].path == "runs/a/step-000000002") {
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
                   const int64_t found = FoundIn(image);
                   ++counts.total;
                   counts.old_step += found == 1;
                   counts.new_step += found == 2;
                   counts.wrong += (found != 1 && found != 2) || (num_done >= done && found != 2);
                 });
  }
  return counts;
}

TEST(CrashTest, AlwaysTheOldStepOrTheNew) {
  for (const int num_ranks : {1, 2}) {
    for (const int keep : {3, 1}) {
      const SaveLog save = RecordSave(num_ranks, keep);
      const Counts counts = CrashEverywhere(save, DoneBehind(save.log));
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
    EXPECT_GT(CrashEverywhere(broken, DoneBehind(broken.log)).wrong, 0) << mutant.path;
  }
  // The parent's names: the save is done when it says so.
  SaveLog broken = save;
  const size_t done = DoneBehind(broken.log);
  ASSERT_EQ(broken.log[done - 1].kind, DiskOp::kSyncFolder);
  broken.log.erase(broken.log.begin() + static_cast<int64_t>(done) - 1);
  EXPECT_GT(CrashEverywhere(broken, done - 1).wrong, 0);
}

TEST(CrashTest, AnEmptyDisk) {
  const SaveLog save = RecordFirstSave();
  const size_t done = DoneBehind(save.log);
  int64_t found_none = 0, found_it = 0;
  for (size_t num_done = 0; num_done <= save.log.size(); ++num_done) {
    VisitCrashes(save.before, save.log, num_done, /*seed=*/num_done, /*samples=*/500,
                 [&](const DiskImage& image) {
                   const int64_t found = FoundIn(image);
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
  const size_t done = DoneBehind(save.log);
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

}  // namespace
}  // namespace weft
