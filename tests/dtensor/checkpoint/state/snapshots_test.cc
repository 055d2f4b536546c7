#include "dtensor/checkpoint/state/snapshots.h"

#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/crash_files.h"
#include "tests/dtensor/checkpoint/memory/test_nodes.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr char kFolder[] = "runs";

// A job on some nodes, generation after generation, whose state at a step is BoxBytes of that step as the seed.
struct Job {
  Job(int num_nodes, int ranks_per_node) : nodes(num_nodes, ranks_per_node) {}

  // A generation on `num_ranks` of the nodes' ranks: goes on, and takes snapshots of `steps`. Returns where it went on.
  std::optional<int64_t> Run(const SpreadCase& spread, const std::vector<int64_t>& steps,
                             const std::vector<int64_t>& saves = {}) {
    std::vector<std::optional<int64_t>> begun(spread.num_ranks());
    lines.clear();
    taken.clear();
    RunRanks(spread.num_ranks(), [&](World& world) {
      TestRun run(world, spread);
      FillState(run.state, 1000);
      CheckpointManager manager(world, OptionsOf(world.rank()));
      begun[world.rank()] = manager.Resume(run.state);
      EXPECT_EQ(CountWrongBytes(run.state, begun[world.rank()].value_or(1000)), 0);
      for (const int64_t step : steps) {
        FillState(run.state, static_cast<uint64_t>(step));
        manager.AfterStep(step, run.state);
        // What changes while the snapshot is under way is not in it.
        FillState(run.state, 2000);
        if (std::count(saves.begin(), saves.end(), step) > 0) {
          FillState(run.state, static_cast<uint64_t>(step));
          manager.Save(step, run.state);
        }
      }
      manager.Wait();
    });
    ++generation;
    for (const auto& step : begun) EXPECT_EQ(step, begun[0]);
    return begun[0];
  }

  CheckpointOptions OptionsOf(int rank) {
    return {.folder = kFolder,
            .background = true,
            .generation = generation,
            .snapshot_every = 1,
            .snapshot_memory = nodes.MemoryOf(rank),
            .on_snapshot = [this](int64_t step) { taken.push_back(step); },
            .files = files,
            .warn = [this](const std::string& line) { lines.push_back(line); }};
  }

  TestNodes nodes;
  int64_t generation = 0;
  std::shared_ptr<CrashFiles> files = std::make_shared<CrashFiles>();
  std::vector<std::string> lines;  // of rank 0, in the last generation
  std::vector<int64_t> taken;      // likewise
};

const SpreadCase& CaseOf(const std::string& name) {
  for (const SpreadCase& spread : SpreadCases()) {
    if (spread.name == name) return spread;
  }
  ADD_FAILURE() << name;
  return SpreadCases()[0];
}

// From each mesh and plan to the next, which has other ranks: bit for bit; with a node lost in between, or none.
TEST(SnapshotsTest, GoOnOnAnyMeshWhicheverNodeIsLost) {
  const std::vector<SpreadCase>& cases = SpreadCases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const SpreadCase& from = cases[i];
    const SpreadCase& to = cases[(i + 1) % cases.size()];
    for (int ranks_per_node : {1, 2}) {
      const int num_nodes = (from.num_ranks() + ranks_per_node - 1) / ranks_per_node;
      for (int lost = -1; lost < num_nodes; ++lost) {
        if (ranks_per_node == 1 && lost >= 0 && lost != static_cast<int>(i) % num_nodes) continue;
        SCOPED_TRACE(from.name + " to " + to.name + ", " + std::to_string(ranks_per_node) +
                     " ranks per node, lost " + std::to_string(lost));
        Job job(num_nodes, ranks_per_node);
        EXPECT_EQ(job.Run(from, {1, 2, 3}), std::nullopt);
        EXPECT_EQ(job.taken, (std::vector<int64_t>{1, 2, 3}));
        if (lost >= 0) job.nodes.Lose(lost);
        while (job.nodes.num_ranks() < to.num_ranks()) job.nodes.Add();
        // What nodes that have no part now hold is not looked for.
        const bool is_seen = job.nodes.num_nodes() <= (to.num_ranks() + ranks_per_node - 1) / ranks_per_node;
        if (!is_seen) continue;
        const std::optional<int64_t> begun = job.Run(to, {4});
        EXPECT_EQ(begun, num_nodes == 1 && lost == 0 ? std::nullopt : std::optional<int64_t>(3));
        if (lost < 0) {
          EXPECT_EQ(job.Run(to, {}), 4);
        }
      }
    }
  }
}

TEST(SnapshotsTest, TwoNodesThatAreLostTakeTheFolder) {
  Job job(3, 1);
  const SpreadCase& three = CaseOf("zero1");
  EXPECT_EQ(job.Run(three, {5, 6, 7}, /*saves=*/{5}), std::nullopt);
  job.nodes.Lose(1);
  job.nodes.Lose(0);
  job.nodes.Add();
  job.nodes.Add();
  EXPECT_EQ(job.Run(three, {}), 5);
  EXPECT_THAT(job.lines, Contains(HasSubstr("not every piece of step 7 of generation 0 is in memory")));
}

TEST(SnapshotsTest, ACopyServesWhereAPieceIsDamaged) {
  Job job(2, 1);
  const SpreadCase& two = CaseOf("zero2");
  job.Run(two, {5, 6, 7}, /*saves=*/{5});
  ASSERT_EQ(job.nodes.Damage(7, 0, /*copies=*/false), 1);
  EXPECT_EQ(job.Run(two, {}), 7);
  EXPECT_THAT(job.lines,
              Contains(HasSubstr("the piece of rank 0 of step 7 of generation 0 that rank 0 has: ")));
  ASSERT_EQ(job.nodes.Damage(7, 0, /*copies=*/true), 1);
  EXPECT_EQ(job.Run(two, {}), 6);
  ASSERT_EQ(job.nodes.Damage(6, 0, /*copies=*/false), 1);
  ASSERT_EQ(job.nodes.Damage(6, 0, /*copies=*/true), 1);
  EXPECT_EQ(job.Run(two, {}), 5);
}

// Killed in the middle of one, in any generation: the last stays, since it is the other place that is written.
TEST(SnapshotsTest, OneThatIsHalfWrittenLeavesTheLast) {
  Job job(2, 1);
  const SpreadCase& two = CaseOf("zero2");
  job.Run(two, {3, 4});
  ASSERT_EQ(job.nodes.Unstamp(4, 1), 2);
  EXPECT_EQ(job.Run(two, {4}), 3);
  EXPECT_EQ(job.Run(two, {5}), 4);
  ASSERT_EQ(job.nodes.Unstamp(5, 0), 2);
  EXPECT_EQ(job.Run(two, {}), 4);
  EXPECT_EQ(job.Run(two, {6, 7}), 4);
  ASSERT_EQ(job.nodes.Unstamp(7, 1), 2);
  EXPECT_EQ(job.Run(two, {}), 6);
}

// What ranks die of while they load it, they would die of again.
TEST(SnapshotsTest, OneThatIsNeverLoadedToTheEndIsLeft) {
  Job job(2, 1);
  const SpreadCase& two = CaseOf("zero2");
  job.Run(two, {5, 6, 7}, /*saves=*/{5});
  const auto tries_of = [&job](int64_t step) {
    std::set<int> tries;
    job.nodes.ForEach([&](MemorySegment& segment, const SnapshotStamp& stamp, bool) {
      if (stamp.key.step == step) tries.insert(TriesOf(segment));
    });
    return tries;
  };
  for (int attempt = 1; attempt <= Snapshots::kMostTries; ++attempt) {
    RunRanks(2, [&](World& world) {
      TestRun run(world, two);
      CheckpointManager manager(world, job.OptionsOf(world.rank()));
      EXPECT_EQ(manager.snapshot_step(), 7);
      State other;
      other.Add("other", MakeTextState(
                             "absent", [] { return std::string(); },
                             [](const std::string&) { throw std::runtime_error("cannot be loaded"); }));
      EXPECT_THAT(MessageOf([&] { manager.Resume(other); }), testing::Ne("no error"));
    });
    EXPECT_EQ(tries_of(7), std::set<int>{attempt});
  }
  EXPECT_EQ(job.Run(two, {}), 6);
  EXPECT_EQ(tries_of(6), std::set<int>{0});
  EXPECT_THAT(job.lines, Contains(HasSubstr("going on from the snapshot of step 6")));
}

// The place that is written next does not depend on what a rank does with the news.
TEST(SnapshotsTest, AWordAboutOneThatFailsLosesNothing) {
  Job job(2, 1);
  const SpreadCase& two = CaseOf("zero2");
  RunRanks(2, [&](World& world) {
    TestRun run(world, two);
    CheckpointOptions options = job.OptionsOf(world.rank());
    options.on_snapshot = [](int64_t) { throw std::runtime_error("the store is busy"); };
    CheckpointManager manager(world, options);
    for (const int64_t step : {3, 4}) {
      FillState(run.state, static_cast<uint64_t>(step));
      manager.AfterStep(step, run.state);
    }
    manager.Wait();
  });
  EXPECT_THAT(job.lines, Contains(HasSubstr("was not counted as a save: the store is busy")));
  ASSERT_EQ(job.nodes.Unstamp(4, 0), 2);
  EXPECT_EQ(job.Run(two, {}), 3);
}

// A part that adapts what it finds, of which nobody knows what it reads: here each rank all elements. That the tensor is the
// part's own is seen by Tensors; Knows may say it, too.
class WholePart final : public StatePart {
 public:
  WholePart(const DTensor& tensor, bool knows) : tensor_(tensor), knows_(knows) {}

  std::vector<StateTensor> Tensors() override { return {{.name = "whole.split", .tensor = tensor_}}; }
  bool is_exact() const override { return false; }
  bool Knows(absl::string_view name) override { return knows_ && name == "whole.split"; }
  void Load(TensorSource& source) override {
    whole = source.Read("whole.split", WholeBox({5}), MakeCpuAllocator());
  }

  Tensor whole;

 private:
  const DTensor tensor_;
  const bool knows_;
};

void ExpectAllOfWhatAPartAdapts(bool knows) {
  Job job(3, 1);
  for (const int num_ranks : {2, 3}) {  // the second time on other ranks
    RunRanks(num_ranks, [&](World& world) {
      const auto context = Bind(world, DeviceMesh({{"dp", num_ranks}}));
      const auto part = std::make_shared<WholePart>(
          DTensor::Distribute(context, Tensor::FromValues<float>({5}, std::vector<float>(5)),
                              Layout(1, 1).WithShard(0, 0)),
          knows);
      State state;
      state.Add("whole", part);
      CheckpointManager manager(world, job.OptionsOf(world.rank()));
      if (num_ranks == 2) {
        FillState(state, 7);
        manager.AfterStep(7, state);
        return manager.Wait();
      }
      EXPECT_EQ(manager.Resume(state), 7);
      const std::vector<char> expected = BoxBytes("whole.split", 7, DType::kF32, WholeBox({5}));
      ASSERT_TRUE(part->whole.defined());
      EXPECT_EQ(std::memcmp(part->whole.data(), expected.data(), expected.size()), 0);
    });
    ++job.generation;
  }
}

TEST(SnapshotsTest, WhatAPartAdaptsIsAllThere) {
  for (const bool knows : {false, true}) ExpectAllOfWhatAPartAdapts(knows);
}

TEST(SnapshotsTest, AStepOfTheFolderThatIsAsNewIsTaken) {
  Job job(2, 1);
  const SpreadCase& two = CaseOf("zero2");
  job.Run(two, {3, 4}, /*saves=*/{4});
  EXPECT_EQ(job.Run(two, {}), 4);
  EXPECT_THAT(job.lines, testing::IsEmpty());
  // Of a run that has gone on in memory alone the last step is saved, too.
  RunRanks(2, [&](World& world) {
    TestRun run(world, two);
    CheckpointManager manager(world, job.OptionsOf(world.rank()));
    manager.Resume(run.state);
    FillState(run.state, 6);
    manager.AfterStep(6, run.state);
    manager.Wait();
  });
  RunRanks(2, [&](World& world) {
    TestRun run(world, two);
    CheckpointManager manager(world, job.OptionsOf(world.rank()));
    EXPECT_EQ(manager.snapshot_step(), 6);
    EXPECT_EQ(manager.latest_step(), 4);
    EXPECT_EQ(manager.Resume(run.state), 6);
    manager.Save(6, run.state);
    manager.Wait();
    EXPECT_EQ(manager.latest_step(), 6);
  });
  EXPECT_THAT(VerifyStep(*job.files, kFolder, 6).problems, testing::IsEmpty());
}

// Two pieces of each rank's own, two of its buddy's; on one node none of a buddy's.
TEST(SnapshotsTest, CostsWhatIsSaid) {
  constexpr int64_t kHeads = 128 << 10;  // of segments, at most
  const SpreadCase& two = CaseOf("zero2");
  for (const int num_nodes : {1, 2}) {
    Job job(num_nodes, 2 / num_nodes);
    job.Run(two, {1, 2, 3});
    const int64_t state = WholeBytes();
    const int64_t expected = 2 * num_nodes * state;
    EXPECT_GE(job.nodes.NumBytes(), expected);
    EXPECT_LE(job.nodes.NumBytes(), expected + 8 * kHeads);
    ASSERT_EQ(job.lines.size(), 1u);
    EXPECT_THAT(job.lines[0], HasSubstr("snapshots every 1 steps take "));
    EXPECT_THAT(job.lines[0],
                HasSubstr(num_nodes == 1 ? "no copies, as there is one node" : "of copies on other nodes"));
  }
}

// Ranks that own nothing, uneven pieces, ranks that the mesh has no place for.
TEST(SnapshotsTest, EmptyAndUnevenPieces) {
  TestNodes nodes(2, 3);
  const auto files = std::make_shared<CrashFiles>();
  const auto run = [&](int num_ranks, int64_t generation,
                       const std::function<void(CheckpointManager&, State&)>& body) {
    RunRanks(6, [&](World& world) {
      if (world.rank() >= num_ranks) return;
      State state = SmallState(world, num_ranks);
      CheckpointManager manager(world, {.folder = kFolder,
                                        .generation = generation,
                                        .num_ranks = num_ranks,
                                        .snapshot_every = 1,
                                        .snapshot_memory = nodes.MemoryOf(world.rank()),
                                        .files = files});
      body(manager, state);
      manager.Wait();
    });
  };
  const auto take = [](int64_t step) {
    return [step](CheckpointManager& manager, State& state) {
      FillState(state, static_cast<uint64_t>(step));
      manager.AfterStep(step, state);
    };
  };
  const auto expect = [](int64_t step) {
    return [step](CheckpointManager& manager, State& state) {
      EXPECT_EQ(manager.Resume(state), step);
      EXPECT_EQ(CountWrongBytes(state, static_cast<uint64_t>(step)), 0);
    };
  };
  run(6, 0, take(1));
  run(5, 1, expect(1));
  run(4, 2, take(2));
  run(6, 3, expect(2));
  nodes.Lose(0);
  nodes.Add();
  run(6, 4, expect(2));
  run(4, 5, expect(2));
}

// A rank without room for one: an error on all, and the last one stays; what is to be saved at the same step is.
TEST(SnapshotsTest, OneThatCannotBeTakenLeavesTheLast) {
  for (const int64_t save_every : {0, 1}) {
    Job job(2, 1);
    const SpreadCase& two = CaseOf("zero2");
    job.nodes.Freeze(1, 1);  // rank 1's own, the second place
    RunRanks(2, [&](World& world) {
      TestRun run(world, two);
      CheckpointOptions options = job.OptionsOf(world.rank());
      options.save_every = save_every;
      CheckpointManager manager(world, options);
      for (const int64_t step : {1, 2, 3}) {
        FillState(run.state, static_cast<uint64_t>(step));
        const std::string message = MessageOf([&] { manager.AfterStep(step, run.state); });
        EXPECT_EQ(message == "no error", step == 1) << message;
        if (step == 1) continue;
        EXPECT_THAT(message, HasSubstr("no snapshot of step " + std::to_string(step) +
                                       ": rank 1: memory for snapshots: "));
        EXPECT_THAT(message, HasSubstr("cannot be written"));
      }
      manager.Wait();
    });
    EXPECT_EQ(job.taken, (std::vector<int64_t>{1}));
    EXPECT_EQ(ListSteps(*job.files, kFolder).size(), save_every == 0 ? 0u : 3u);
    EXPECT_EQ(job.Run(two, {}), save_every == 0 ? 1 : 3);
  }
}

TEST(SnapshotsTest, WhatIsWrongIsSaidOnEveryRank) {
  TestNodes nodes(2, 1);
  const auto files = std::make_shared<CrashFiles>();
  RunRanks(2, [&](World& world) {
    CheckpointOptions options = {.folder = kFolder, .snapshot_every = 3, .files = files};
    EXPECT_EQ(
        MessageOf([&] { CheckpointManager manager(world, options); }),
        "checkpoints: snapshots every 3 steps, but no memory for them: an agent that outlives the ranks "
        "keeps it, weft_run's");
    options.snapshot_memory = nodes.MemoryOf(world.rank());
    options.snapshot_memory->paths.pop_back();
    EXPECT_THAT(MessageOf([&] { CheckpointManager manager(world, options); }),
                HasSubstr("3 segments of memory for 1 ranks of a node; expected 4 for each"));
  });
  RunRanks(2, [&](World& world) {
    CheckpointOptions options = {.folder = kFolder,
                                 .snapshot_every = 3,
                                 .snapshot_memory = nodes.MemoryOf(world.rank()),
                                 .files = files};
    if (world.rank() == 1) options.snapshot_memory->paths[0] = "/proc/self/fd/100000";
    EXPECT_THAT(MessageOf([&] { CheckpointManager manager(world, options); }),
                HasSubstr("rank 1: memory for snapshots: '/proc/self/fd/100000' cannot be opened"));
  });
}

}  // namespace
}  // namespace weft
