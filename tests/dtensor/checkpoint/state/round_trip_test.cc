// What one mesh, plan and split into stages has saved, any other loads, to the bit.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "dtensor/checkpoint/folder/step_reader.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/checkpoint/files/counting_files.h"
#include "tests/dtensor/checkpoint/state/state_cases.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAreArray;

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

// Where the elements of `record` that `wanted` has, too, lie in the file, from the first to the last; nothing, if there are none.
std::optional<FileRead> SharedSpan(const std::string& path, const PieceRecord& record,
                                   const ShardBox& wanted) {
  int64_t first = -1, last = -1;
  for (int64_t i = 0; i < record.box.shape.num_elements(); ++i) {
    bool is_wanted = true;
    int64_t rest = i;
    for (int dim = record.box.shape.ndim() - 1; dim >= 0; --dim) {
      const int64_t index = record.box.offset[dim] + rest % record.box.shape[dim] - wanted.offset[dim];
      is_wanted = is_wanted && index >= 0 && index < wanted.shape[dim];
      rest /= record.box.shape[dim];
    }
    if (!is_wanted) continue;
    if (first < 0) first = i;
    last = i;
  }
  if (first < 0) return std::nullopt;
  const int64_t item_size = ItemSize(record.dtype);
  return FileRead{path, record.offset + first * item_size, (last - first + 1) * item_size};
}

// A rank reads the headers of the files that have something for it, and of each piece there, by one call, what lies between the
// first and the last of its own elements: runs are merged, since no gap here is as large as a call is worth.
void ReadCase(const std::string& folder, const SpreadCase& spread, const std::string& what) {
  const std::string step = folder + "/step-000000007/";
  const std::shared_ptr<Files> disk = MakeDiskFiles();
  std::map<std::string, PieceTable> tables;  // by path
  for (const auto& [name, file] : ReadManifest(*disk, folder, 7).files) {
    tables[step + name] = ReadPieceTable(*disk->Open(step + name));
  }
  RunRanks(spread.num_ranks(), [&](World& world) {
    TestRun run(world, spread);
    const auto files = std::make_shared<CountingFiles>();
    StepReader reader(files, folder, 7);
    std::vector<FileRead> expected;
    std::map<std::string, int64_t> heads;  // bytes
    for (const auto& [name, part] : run.state.parts()) {
      for (const StateTensor& tensor : part->Tensors()) {
        const ShardBox own = tensor.tensor.LocalBox();
        reader.Read(tensor.name, own, MakeCpuAllocator());
        for (const auto& [path, table] : tables) {
          const auto record = table.find(tensor.name);
          if (record == table.end()) continue;
          const std::optional<FileRead> span = SharedSpan(path, record->second, own);
          if (!span) continue;
          expected.push_back(*span);
          int64_t elements = 0;
          for (const auto& [other, piece] : table) elements += piece.num_bytes();
          heads[path] = disk->SizeOf(path).value() - elements;
        }
      }
    }
    std::vector<FileRead> actual;
    std::map<std::string, int64_t> actual_heads;
    for (const FileRead& read : files->reads()) {
      const auto head = heads.find(read.path);
      ASSERT_NE(head, heads.end()) << what << ": nothing was wanted of " << read.path;
      if (read.offset >= head->second) {
        actual.push_back(read);
      } else {
        actual_heads[read.path] += read.num_bytes;
      }
    }
    EXPECT_THAT(actual, UnorderedElementsAreArray(expected)) << what << ", rank " << world.rank();
    EXPECT_EQ(actual_heads, heads) << what << ", rank " << world.rank();
  });
}

TEST(RoundTripTest, EveryPairOfSpreads) {
  uint64_t seed = 100;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const int64_t bytes = WholeBytes(dtype);
    for (const SpreadCase& from : SpreadCases()) {
      const std::string folder = NewFolder("pairs");
      SaveCase(folder, from, ++seed, dtype);
      CheckFiles(folder, bytes);
      for (const SpreadCase& to : SpreadCases()) {
        const std::string what = absl::StrCat(DTypeName(dtype), ", ", from.name, " to ", to.name);
        LoadCase(folder, to, seed, dtype, what);
        if (dtype == DType::kF32) ReadCase(folder, to, what);
      }
    }
  }
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
