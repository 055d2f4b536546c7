// What one mesh, plan and split into stages has saved, any other loads, to the bit.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string NewFolder(const std::string& name) {
  std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

void SaveCase(const std::string& folder, const SpreadCase& spread, uint64_t seed, DType dtype) {
  RunRanks(spread.num_ranks(), [&](World& world) {
    TestRun run(world, spread, dtype);
    FillState(run.state, seed);
    CheckpointManager manager(world, {.folder = folder});
    EXPECT_EQ(manager.Resume(run.state), std::nullopt);
    manager.Save(7, run.state);
  });
}

// Each element once: the elements in the files are as many as those of the tensors.
void CheckFiles(const std::string& folder, int64_t expected_bytes) {
  const std::shared_ptr<Files> files = MakeDiskFiles();
  EXPECT_THAT(ListSteps(*files, folder), ElementsAre(7));
  EXPECT_THAT(files->List(folder), ElementsAre(".lock", "latest", "step-000000007"));
  const StepVerdict verdict = VerifyStep(*files, folder, 7);
  EXPECT_THAT(verdict.problems, IsEmpty());
  EXPECT_EQ(verdict.num_bytes, expected_bytes);
  // And each in one place: boxes of one tensor do not overlap, and are all of it.
  const Manifest manifest = ReadManifest(*files, folder, 7);
  std::map<std::string, std::vector<int>> counts;
  for (const auto& [name, file] : manifest.files) {
    const auto opened = files->Open(folder + "/step-000000007/" + name);
    for (const auto& [tensor, record] : ReadPieceTable(*opened)) {
      std::vector<int>& count = counts[tensor];
      count.resize(static_cast<size_t>(record.box.global_shape.num_elements()));
      const Shape strides = ContiguousStrides(record.box.global_shape);
      for (int64_t i = 0; i < record.box.shape.num_elements(); ++i) {
        int64_t rest = i, position = 0;
        for (int dim = record.box.shape.ndim() - 1; dim >= 0; --dim) {
          position += (record.box.offset[dim] + rest % record.box.shape[dim]) * strides[dim];
          rest /= record.box.shape[dim];
        }
        ++count[static_cast<size_t>(position)];
      }
    }
  }
  EXPECT_EQ(counts.size(), manifest.tensors.size());
  for (const auto& [tensor, count] : counts) {
    EXPECT_EQ(std::count(count.begin(), count.end(), 1), std::ssize(count)) << tensor;
  }
}

void LoadCase(const std::string& folder, const SpreadCase& spread, uint64_t seed, DType dtype,
              const std::string& what) {
  RunRanks(spread.num_ranks(), [&](World& world) {
    TestRun run(world, spread, dtype);
    FillState(run.state, seed + 1);
    CheckpointManager manager(world, {.folder = folder});
    EXPECT_EQ(manager.Resume(run.state), 7);
    EXPECT_EQ(CountWrongBytes(run.state, seed), 0) << what << ", rank " << world.rank();
    EXPECT_NE(CountWrongBytes(run.state, seed + 1), 0) << what;
  });
}

TEST(RoundTripTest, EveryPairOfSpreads) {
  const int64_t bytes = WholeBytes();
  uint64_t seed = 100;
  for (const SpreadCase& from : SpreadCases()) {
    const std::string folder = NewFolder("pairs");
    SaveCase(folder, from, ++seed, DType::kF32);
    CheckFiles(folder, bytes);
    for (const SpreadCase& to : SpreadCases()) {
      LoadCase(folder, to, seed, DType::kF32, from.name + " to " + to.name);
    }
  }
}

TEST(RoundTripTest, BFloat16) {
  const int64_t bytes = WholeBytes(DType::kBF16);
  for (const auto& [from, to] : {std::pair(5, 2), std::pair(7, 4), std::pair(4, 8)}) {
    const std::string folder = NewFolder("bf16");
    SaveCase(folder, SpreadCases()[from], 9, DType::kBF16);
    CheckFiles(folder, bytes);
    LoadCase(folder, SpreadCases()[to], 9, DType::kBF16, "bf16");
  }
}

// A rank reads what it has, and no more.
TEST(RoundTripTest, EachRankReadsItsPieces) {
  const std::string folder = NewFolder("bytes");
  SaveCase(folder, SpreadCases()[5], 3, DType::kF32);
  const StepReader whole(MakeDiskFiles(), folder, 7);
  EXPECT_EQ(whole.num_bytes_read(), 0);
  RunRanks(4, [&](World& world) {
    TestRun run(world, SpreadCases()[4]);
    StepReader reader(MakeDiskFiles(), folder, 7);
    int64_t own = 0;
    for (const auto& [name, part] : run.state.parts()) {
      for (const StateTensor& tensor : part->Tensors()) {
        reader.Read(tensor.name, tensor.tensor.LocalBox(), MakeCpuAllocator());
        own += tensor.tensor.ToLocal().num_bytes();
      }
    }
    EXPECT_EQ(reader.num_bytes_read(), own);
  });
}

// What was saved is loaded, what was not keeps its value, and what nobody takes is not missed.
TEST(RoundTripTest, OptionalTensorsMayComeAndGo) {
  using Named = std::vector<std::pair<std::string, DTensor>>;
  const std::string folder = NewFolder("optional");
  RunRanks(2, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const auto scalar = [&](double value) { return Full(context, DType::kF32, Shape(), value); };
    const auto state_of = [](const Named& tensors) {
      State state;
      state.Add("scale", MakeOptionalTensorState("scale.", [tensors] { return tensors; }));
      return state;
    };
    {
      CheckpointManager manager(world, {.folder = folder});
      manager.Save(1, state_of({{"scale.gone", scalar(1)}, {"scale.stays", scalar(2)}}));
    }
    {
      CheckpointManager manager(world, {.folder = folder});
      const Named now = {{"scale.stays", scalar(3)}, {"scale.new", scalar(4)}};
      State state = state_of(now);
      EXPECT_EQ(manager.Resume(state), 1);
      EXPECT_EQ(now[0].second.Item(), 2);
      EXPECT_EQ(now[1].second.Item(), 4);
    }
    CheckpointManager manager(world, {.folder = folder});
    State none = state_of({}), other = state_of({{"scale.stays", Full(context, DType::kF64, Shape(), 0)}});
    EXPECT_EQ(manager.Resume(none), 1);
    EXPECT_THAT(InvalidArgumentMessage([&] { manager.Load(1, other); }),
                testing::HasSubstr("tensor 'scale.stays' is f32[], expected f64[]"));
  });
}

}  // namespace
}  // namespace weft
