#include "dtensor/checkpoint/state/replica_read.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/counting_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::HasSubstr;

std::string NewFolder(const std::string& name) {
  std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

void SaveCase(const std::string& folder, const SpreadCase& spread, uint64_t seed) {
  RunRanks(spread.num_ranks(), [&](World& world) {
    TestRun run(world, spread);
    FillState(run.state, seed);
    CheckpointManager manager(world, {.folder = folder});
    manager.Save(7, run.state);
  });
}

// Returns what each rank has read.
std::vector<int64_t> LoadCase(const std::string& folder, const SpreadCase& spread, uint64_t seed,
                              ReplicaReads replicas) {
  std::vector<int64_t> num_bytes(spread.num_ranks());
  RunRanks(spread.num_ranks(), [&](World& world) {
    TestRun run(world, spread);
    FillState(run.state, seed + 1);
    const auto files = std::make_shared<CountingFiles>();
    CheckpointManager manager(world, {.folder = folder, .files = files});
    EXPECT_EQ(manager.Resume(run.state, {.replicas = replicas}), 7);
    EXPECT_EQ(CountWrongBytes(run.state, seed), 0) << spread.name << ", rank " << world.rank();
    num_bytes[world.rank()] = files->num_bytes();
  });
  return num_bytes;
}

int64_t Sum(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  return sum;
}

// Bit for bit; and of what all ranks have, each element is read once.
TEST(ReplicaReadTest, AnySpreadReadsOnce) {
  const std::string folder = NewFolder("once");
  SaveCase(folder, SpreadCases()[0], 5);
  for (const SpreadCase& to : SpreadCases()) {
    const std::vector<int64_t> each = LoadCase(folder, to, 5, ReplicaReads::kByEach);
    const std::vector<int64_t> once = LoadCase(folder, to, 5, ReplicaReads::kOnce);
    EXPECT_LE(Sum(once), Sum(each)) << to.name;
    // Heads apart, which both read.
    if (to.name == "ddp") {
      EXPECT_EQ(Sum(each) - Sum(once), WholeBytes());
    }
  }
}

TEST(ReplicaReadTest, EveryPairOfSpreads) {
  uint64_t seed = 300;
  for (const SpreadCase& from : SpreadCases()) {
    const std::string folder = NewFolder("pairs_once");
    SaveCase(folder, from, ++seed);
    for (const SpreadCase& to : SpreadCases()) LoadCase(folder, to, seed, ReplicaReads::kOnce);
  }
}

// Replicas on four ranks: none reads much more than a fourth.
TEST(ReplicaReadTest, RanksShareTheWork) {
  const SpreadCase four = {.name = "four", .mesh = "dp=4", .plan = {}};
  const std::string folder = NewFolder("share");
  SaveCase(folder, four, 8);
  int64_t largest = 0;
  std::vector<std::map<std::string, ReplicaRead>> reads(4);
  RunRanks(4, [&](World& world) {
    TestRun run(world, four);
    Agreement agreement(world, std::chrono::seconds(60));
    const std::vector<LocalStateTensor> tensors = TensorsOf(run.state, {});
    reads[world.rank()] = DivideReplicas(GatherStateTable(agreement, tensors), tensors, world.rank());
    if (world.rank() > 0) return;
    for (const LocalStateTensor& local : tensors) {
      largest = std::max(largest, local.tensor.tensor.ToLocal().num_bytes());
    }
  });
  EXPECT_FALSE(reads[0].empty());
  for (const auto& of_rank : reads) EXPECT_EQ(of_rank, reads[0]);
  for (const auto& [name, read] : reads[0]) EXPECT_EQ(read.holders, (std::vector<int>{0, 1, 2, 3})) << name;
  const std::vector<int64_t> once = LoadCase(folder, four, 8, ReplicaReads::kOnce);
  const int64_t heads = Sum(once) - WholeBytes();
  EXPECT_GE(heads, 0);
  for (const int64_t num_bytes : once) EXPECT_LE(num_bytes, WholeBytes() / 4 + largest + heads);
}

// What one rank finds broken is told on all, and nobody waits for what it has not read.
TEST(ReplicaReadTest, ABrokenPieceIsToldOnAll) {
  const SpreadCase three = {.name = "three", .mesh = "dp=3", .plan = {}};
  const std::string folder = NewFolder("broken");
  SaveCase(folder, three, 9);
  const std::string file = folder + "/step-000000007/rank-00000.safetensors";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(-3, std::ios::end);
  const char byte = static_cast<char>(bytes.get() ^ 4);
  bytes.seekp(-3, std::ios::end);
  bytes.put(byte);
  bytes.close();
  std::vector<std::string> messages(3);
  RunRanks(3, [&](World& world) {
    TestRun run(world, three);
    CheckpointManager manager(world, {.folder = folder});
    messages[world.rank()] =
        MessageOf([&] { manager.Load(7, run.state, {.replicas = ReplicaReads::kOnce}); });
  });
  EXPECT_THAT(messages[0], HasSubstr("the elements of tensor '"));
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
}

TEST(ReplicaReadTest, HoldersHaveTheSameBox) {
  const DeviceMesh one({{"a", 3}}), two({{"a", 2}, {"b", 3}}), three({{"a", 2}, {"b", 2}, {"c", 2}});
  const std::vector<std::pair<DeviceMesh, Layout>> cases = {{one, Layout(2, 1)},
                                                            {one, Layout(2, 1).WithShard(0, 0)},
                                                            {two, Layout(2, 2).WithShard(0, 0)},
                                                            {two, Layout(2, 2).WithShard(1, 1)},
                                                            {three, Layout(2, 3).WithShard(1, 0)}};
  for (const auto& [mesh, layout] : cases) {
    const TensorPlace place = {.type = {DType::kF32, {5, 7}}, .mesh = mesh, .layout = layout};
    for (const int rank : mesh.ranks()) {
      std::vector<int> expected;
      const ShardBox own = LocalBox(place.type.shape, layout, mesh, mesh.CoordinateOf(rank));
      for (const int other : mesh.ranks()) {
        if (LocalBox(place.type.shape, layout, mesh, mesh.CoordinateOf(other)) == own)
          expected.push_back(other);
      }
      EXPECT_EQ(HoldersOf(place, rank), expected) << mesh.ToString() << ", rank " << rank;
    }
  }
}

}  // namespace
}  // namespace weft
