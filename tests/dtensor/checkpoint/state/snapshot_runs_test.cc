// Runs of one job that share its memory for snapshots.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/memory/test_nodes.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"

namespace weft {
namespace {

constexpr int kNumRanks = 2;

// A job on some nodes whose program trains several times, each time into a folder of its own.
struct Job {
  explicit Job(int num_nodes) : nodes(num_nodes, kNumRanks / num_nodes) {}

  CheckpointOptions OptionsOf(int rank, const std::string& folder) {
    return {.folder = folder,
            .generation = generation,
            .snapshot_every = 1,
            .snapshot_memory = nodes.MemoryOf(rank),
            .files = files,
            .warn = [](const std::string&) {}};
  }

  // Goes on, and takes snapshots of `steps`. The state of a step is that of `seed` + step. Returns where it went on.
  std::optional<int64_t> Train(const std::string& folder, uint64_t seed, const std::vector<int64_t>& steps) {
    std::vector<std::optional<int64_t>> begun(kNumRanks);
    RunRanks(kNumRanks, [&](World& world) {
      State state = SmallState(world, kNumRanks);
      CheckpointManager manager(world, OptionsOf(world.rank(), folder));
      begun[world.rank()] = manager.Resume(state);
      if (const auto step = begun[world.rank()]) {
        EXPECT_EQ(CountWrongBytes(state, seed + static_cast<uint64_t>(*step)), 0);
      }
      for (const int64_t step : steps) {
        FillState(state, seed + static_cast<uint64_t>(step));
        manager.AfterStep(step, state);
      }
      manager.Wait();
    });
    EXPECT_EQ(begun[1], begun[0]);
    return begun[0];
  }

  // The next life of the job, in folder "run", before it has resumed.
  void Restart(const std::function<void(CheckpointManager& manager, State& state)>& go_on) {
    ++generation;
    RunRanks(kNumRanks, [&](World& world) {
      State state = SmallState(world, kNumRanks);
      CheckpointManager manager(world, OptionsOf(world.rank(), "run"));
      go_on(manager, state);
    });
  }

  TestNodes nodes;
  int64_t generation = 0;
  std::shared_ptr<CrashFiles> files = std::make_shared<CrashFiles>();
};

// The second run's snapshot has the step, the generation and the number of one of the first's.
TEST(SnapshotRunsTest, ARunTakesThoseOfItsFolder) {
  for (const int num_nodes : {1, 2}) {
    Job job(num_nodes);
    EXPECT_EQ(job.Train("first", 1000, {3, 4}), std::nullopt);
    EXPECT_EQ(job.Train("second", 2000, {3}), std::nullopt);
    ++job.generation;
    EXPECT_EQ(job.Train("first", 1000, {}), 4);
    EXPECT_EQ(job.Train("second", 2000, {}), 3);
    EXPECT_EQ(job.Train("third", 3000, {}), std::nullopt);
  }
}

// Loads again, over other values, what is the newest now.
void ExpectResumes(CheckpointManager& manager, State& state, int64_t step) {
  FillState(state, 1000);
  EXPECT_EQ(manager.Resume(state), step);
  EXPECT_EQ(CountWrongBytes(state, static_cast<uint64_t>(step)), 0);
}

TEST(SnapshotRunsTest, EachResumeTakesTheNewest) {
  Job job(/*num_nodes=*/2);
  job.Train("run", 0, {5, 6});
  job.Restart([](CheckpointManager& manager, State& state) {
    // As of a program that loads one part after another, or that goes back to the last step after an error.
    ExpectResumes(manager, state, 6);
    ExpectResumes(manager, state, 6);
    FillState(state, 7);
    manager.AfterStep(7, state);
    ExpectResumes(manager, state, 7);
    FillState(state, 8);
    manager.Save(8, state);
    ExpectResumes(manager, state, 8);
    FillState(state, 9);
    manager.AfterStep(9, state);
    ExpectResumes(manager, state, 9);
  });
  EXPECT_EQ(job.Train("run", 0, {}), 9);
}

// A snapshot that is written over a damaged one is as good as any.
TEST(SnapshotRunsTest, AnotherResumeTakesWhatWasWrittenOverADamagedOne) {
  Job job(/*num_nodes=*/1);
  job.Train("run", 0, {5, 6});
  ASSERT_EQ(job.nodes.Damage(6, 0, /*copies=*/false), 1);
  job.Restart([](CheckpointManager& manager, State& state) {
    ExpectResumes(manager, state, 5);
    FillState(state, 7);
    manager.AfterStep(7, state);
    ExpectResumes(manager, state, 7);
  });
}

// The folder has a step by now that is newer than the snapshot that was there when the run began.
TEST(SnapshotRunsTest, ASaveBeforeTheFirstResumeCounts) {
  Job job(/*num_nodes=*/2);
  job.Train("run", 0, {5, 6});
  job.Restart([](CheckpointManager& manager, State& state) {
    EXPECT_EQ(manager.snapshot_step(), 6);
    FillState(state, 8);
    manager.Save(8, state);
    ExpectResumes(manager, state, 8);
  });
}

}  // namespace
}  // namespace weft
