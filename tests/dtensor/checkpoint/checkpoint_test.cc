#include "dtensor/checkpoint/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/model_parts.h"
#include "dtensor/nn/segmented_module.h"
#include "dtensor/optim/adamw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mesh/shard_math.h"
#include "parallel/parallelize.h"
#include "runtime/device/allocator.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/launch/world.h"
#include "tests/forwarding_allocator.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

const GptConfig kConfig = {.vocabulary = 17, .context = 8, .layers = 1, .heads = 2, .dim = 8};

// Fully sharded over dp; the uneven vocabulary over tp too.
Plan FsdpTimesTp(const DeviceMesh& mesh) {
  std::vector<PlanEntry> entries;
  if (mesh.FindAxis("tp") >= 0) {
    entries = {{"wte", VocabParallel("tp")},
               {"blocks.*.mlp.up", ColumnParallel("tp")},
               {"blocks.*.mlp.down", RowParallel("tp")}};
  }
  if (mesh.FindAxis("dp") >= 0) entries.push_back({"", FullyShard("dp")});
  return Plan(entries);
}

using Values = std::map<std::string, std::vector<double>>;

// Runs `body(model, optimizer)` on every rank of the mesh and returns all tensors afterwards, whole.
Values RunModel(const std::string& mesh_text, uint64_t seed, const std::function<void(Gpt&, AdamW&)>& body) {
  Values values;
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    const auto context = Bind(world, mesh);
    context->state().set_seed(seed);
    Gpt model(kConfig);
    Parallelize(model, context, FsdpTimesTp(mesh));
    AdamW optimizer(model.AllParameters(), {});
    body(model, optimizer);
    Values here;
    for (const auto& [name, tensor] : CheckpointTensors(model, optimizer)) {
      here[name] = tensor.FullTensor().ToVector<double>();
    }
    if (world.rank() == 0) values = here;
  });
  return values;
}

// One training step, so that the optimizer's state is not zero.
void Train(Gpt& model, AdamW& optimizer) {
  const auto& context = model.context();
  const std::vector<int32_t> tokens = {1, 5, 16, 0, 3, 3, 9, 2};
  const auto batch = DTensor::Distribute(context, Tensor::FromValues<int32_t>({1, 8}, tokens),
                                         Layout(2, context->mesh().num_axes()));
  Backward(model.Loss(batch, batch).Mean());
  optimizer.Step(1e-2);
  optimizer.ZeroGrad();
}

TEST(CheckpointTest, LoadsBitwiseOnEveryMesh) {
  const std::string path = ::testing::TempDir() + "/gpt.safetensors";
  const Values saved = RunModel("dp=2,tp=2", 1, [&](Gpt& model, AdamW& optimizer) {
    Train(model, optimizer);
    SaveTensors(path, CheckpointTensors(model, optimizer), {{"step", "1"}});
  });
  EXPECT_EQ(saved.size(), 3 * 17u + 1);  // each parameter and its two moments; the count of updates
  EXPECT_EQ(saved.at("optimizer.updates"), std::vector<double>{1});
  for (const char* mesh : {"", "dp=2", "tp=3", "dp=3,tp=2"}) {
    const Values loaded = RunModel(mesh, 2, [&](Gpt& model, AdamW& optimizer) {
      SafetensorsReader reader(path);
      EXPECT_EQ(reader.metadata().at("step"), "1");
      LoadParameters(reader, model);
      LoadOptimizerState(reader, optimizer);
    });
    EXPECT_EQ(loaded, saved) << mesh;
  }
}

TEST(CheckpointTest, AFileWithoutACountOfUpdatesTakesWhatStandsIn) {
  const std::string path = ::testing::TempDir() + "/older.safetensors";
  RunModel("dp=2", 1, [&](Gpt& model, AdamW& optimizer) {
    Train(model, optimizer);
    std::vector<std::pair<std::string, DTensor>> tensors = CheckpointTensors(model, optimizer);
    EXPECT_EQ(tensors.back().first, "optimizer.updates");
    tensors.pop_back();
    SaveTensors(path, tensors, {});
  });
  const Values loaded = RunModel("tp=2", 2, [&](Gpt&, AdamW& optimizer) {
    SafetensorsReader reader(path);
    EXPECT_THAT([&] { LoadOptimizerState(reader, optimizer); },
                ::testing::ThrowsMessage<Error>(HasSubstr("has no tensor 'optimizer.updates'")));
    LoadOptimizerState(reader, optimizer, /*updates_of_older=*/41);
  });
  EXPECT_EQ(loaded.at("optimizer.updates"), std::vector<double>{41});
  // A file that has the count is believed.
  RunModel("", 1, [&](Gpt& model, AdamW& optimizer) {
    Train(model, optimizer);
    SaveTensors(path, CheckpointTensors(model, optimizer), {});
    SafetensorsReader reader(path);
    LoadOptimizerState(reader, optimizer, /*updates_of_older=*/41);
    EXPECT_EQ(optimizer.updates().Item(), 1);
  });
}

// Ranks tell one another what their stages have; what several have is written as the first has it.
TEST(CheckpointTest, NamesOfStagesMayHaveBlanksAndNewlines) {
  const std::string path = ::testing::TempDir() + "/names.safetensors";
  RunRanks(2, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("pp=2"));
    const int stage = world.rank();
    const auto own = Bind(context, context->mesh().Slice({{"pp", stage}}));
    const ModelParts parts = {.context = context, .axis = 0};
    const std::string name = stage == 0 ? "2 f32 3" : "a\nname 5 f32\n";
    const Shape shape = stage == 0 ? Shape({2, 3}) : Shape();
    SaveTensors(path,
                {{name, Full(own, DType::kF32, shape, stage + 1)},
                 {"of both", Full(own, DType::kI64, {1}, stage + 3)}},
                {}, &parts);
  });
  SafetensorsReader reader(path);
  EXPECT_EQ(reader.entries(), (std::vector<SafetensorsEntry>{{"2 f32 3", {DType::kF32, {2, 3}}},
                                                             {"of both", {DType::kI64, {1}}},
                                                             {"a\nname 5 f32\n", {DType::kF32, {}}}}));
  const auto values = [&](const std::string& name) {
    return reader.Read(name, WholeBox(reader.Find(name)->shape), MakeCpuAllocator()).ToVector<double>();
  };
  EXPECT_EQ(values("2 f32 3"), std::vector<double>(6, 1));
  EXPECT_EQ(values("of both"), std::vector<double>{3});
  EXPECT_EQ(values("a\nname 5 f32\n"), std::vector<double>{2});
}

// Of stages as without: the second tensor would be lost. Ranks that have one each hear of it, too.
TEST(CheckpointTest, ANameThatStandsTwiceIsRefused) {
  const std::string path = ::testing::TempDir() + "/twice.safetensors";
  const auto is_refused = ::testing::ThrowsMessage<Error>(HasSubstr("tensor 'x' stands twice"));
  RunRanks(2, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("pp=2"));
    const int stage = world.rank();
    const auto own = Bind(context, context->mesh().Slice({{"pp", stage}}));
    const ModelParts parts = {.context = context, .axis = 0};
    std::vector<std::pair<std::string, DTensor>> tensors = {{"x", Full(own, DType::kF32, {1}, 1)}};
    if (stage == 1) tensors.push_back({"x", Full(own, DType::kF32, {1}, 2)});
    EXPECT_THAT([&] { SaveTensors(path, tensors, {}, &parts); }, is_refused);
  });
  RunRanks(1, [&](World& world) {
    const DTensor x = Full(Bind(world, DeviceMesh()), DType::kF32, {1}, 1);
    EXPECT_THAT([&] { SaveTensors(path, {{"x", x}, {"x", x}}, {}); }, is_refused);
  });
}

// No rank goes on before the file is there, and none replaces it before all have come. The last tensor is small: ranks that do
// not write are through long before the writer.
TEST(CheckpointTest, WhatIsReadBehindASaveIsWhatWasSaved) {
  const std::string path = ::testing::TempDir() + "/again.safetensors";
  RunRanks(2, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    for (const double value : {1.0, 2.0, 3.0}) {
      SaveTensors(path,
                  {{"large", Full(context, DType::kF32, {4, 1 << 20}, value)},
                   {"small", Full(context, DType::kF32, {2}, value)}},
                  {});
      SafetensorsReader reader(path);
      EXPECT_EQ(reader.Read("small", WholeBox({2}), MakeCpuAllocator()).ToVector<double>(),
                std::vector<double>(2, value))
          << "rank " << world.rank();
    }
  });
}

// When the file is opened, and when it gets its name, which a folder has. Afterwards ranks are in step.
TEST(CheckpointTest, WhatTheWriterFailsInIsAnErrorOnEveryRank) {
  const std::string folder = ::testing::TempDir() + "/a_folder.safetensors";
  std::filesystem::create_directories(folder);
  const std::string nowhere = folder + "/no_such/x.safetensors";
  const std::string path = ::testing::TempDir() + "/in_step.safetensors";
  RunRanks(2, [&](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    const auto save = [&](const std::string& to) {
      SaveTensors(to, {{"x", Full(context, DType::kF32, {3}, 1)}}, {});
    };
    for (const std::string& to : {nowhere, folder}) {
      EXPECT_THAT([&] { save(to); },
                  ::testing::ThrowsMessage<Error>(HasSubstr("cannot write '" + to + "': ")))
          << "rank " << world.rank();
    }
    save(path);
    EXPECT_EQ(SafetensorsReader(path).entries().size(), 1u);
  });
  std::filesystem::remove(folder);
}

// The writer alone makes the header; the other rank waits for its word.
TEST(CheckpointTest, NamesThatAreNotUtf8AreAnErrorOnEveryRank) {
  const std::string path = ::testing::TempDir() + "/utf8.safetensors";
  RunRanks(2, [&](World& world) {
    const DTensor x = Full(Bind(world, DeviceMesh::Parse("dp=2")), DType::kF32, {3}, 1);
    EXPECT_THAT(
        [&] {
          SaveTensors(path, {{"gr\xfc\xdf", x}}, {});
        },
        ::testing::ThrowsMessage<Error>(HasSubstr("tensor 'gr\\xfc\\xdf' is not UTF-8")))
        << "rank " << world.rank();
    EXPECT_THAT(
        [&] {
          SaveTensors(path, {{"x", x}}, {{"k", "\xff"}});
        },
        ::testing::ThrowsMessage<Error>(HasSubstr("text 'k' is not UTF-8")))
        << "rank " << world.rank();
  });
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Another world, in which something has cut off a collective of one rank.
class CutOffWorld final : public World {
 public:
  CutOffWorld(World& inner, int cut_off)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, inner.allocator(), inner.tracer()),
        inner_(inner),
        cut_off_(cut_off) {}

  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    return inner_.NewGroup(name, ranks);
  }
  void ThrowIfCutOff() const override {
    if (rank() == cut_off_) Throw(absl::StatusCode::kAborted, "group 'grad' of rank ", rank(), " is gone");
  }

 private:
  World& inner_;
  const int cut_off_;
};

// Whichever rank's it is: what it gave may be anything.
TEST(CheckpointTest, WhatACollectiveThatWasCutOffHasLeftReplacesNoFile) {
  const std::string path = ::testing::TempDir() + "/cut_off.safetensors";
  for (const int cut_off : {0, 1, 2}) {
    std::ofstream(path) << "of an earlier save";
    RunRanks(3, [&](World& inner) {
      CutOffWorld world(inner, cut_off);
      const auto context = Bind(world, DeviceMesh::Parse("dp=3"));
      EXPECT_THAT(
          [&] {
            SaveTensors(path, {{"x", Full(context, DType::kF32, {3}, 1)}}, {});
          },
          ::testing::ThrowsMessage<Error>("group 'grad' of rank " + std::to_string(cut_off) + " is gone"))
          << "rank " << world.rank();
    });
    std::ifstream file(path);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "of an earlier save");
  }
}

// Another allocator, which has no memory for buffers of so many bytes and more.
class SmallAllocator final : public ForwardingAllocator {
 public:
  SmallAllocator(std::shared_ptr<Allocator> inner, int64_t refused)
      : ForwardingAllocator(std::move(inner)), refused_(refused) {}

 private:
  void* DoAllocate(int64_t num_bytes, MemoryKind kind) override {
    if (num_bytes >= refused_) throw std::bad_alloc();
    return ForwardingAllocator::DoAllocate(num_bytes, kind);
  }

  const int64_t refused_;
};

// Another world, with memory of `allocator`.
class OtherMemoryWorld final : public World {
 public:
  OtherMemoryWorld(World& inner, std::shared_ptr<Allocator> allocator)
      : World(inner.rank(), inner.size(), /*num_threads=*/1, std::move(allocator), inner.tracer()),
        inner_(inner) {}

  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    return inner_.NewGroup(name, ranks);
  }

 private:
  World& inner_;
};

// The writer for what another stage sends it, which waits there.
TEST(CheckpointTest, NoMemoryForAnotherStagesTensorIsAnErrorOnEveryRank) {
  constexpr int64_t kCount = 4099;
  const std::string path = ::testing::TempDir() + "/no_memory.safetensors";
  RunRanks(2, [&](World& inner) {
    const int stage = inner.rank();
    const int64_t refused = stage == 0 ? kCount * 4 : std::numeric_limits<int64_t>::max();
    OtherMemoryWorld world(inner, std::make_shared<SmallAllocator>(inner.allocator(), refused));
    const auto context = Bind(world, DeviceMesh::Parse("pp=2"));
    const auto own = Bind(context, context->mesh().Slice({{"pp", stage}}));
    const ModelParts parts = {.context = context, .axis = 0};
    const std::vector<std::pair<std::string, DTensor>> tensors = {
        {std::to_string(stage) + ".first", Full(own, DType::kF32, {stage == 0 ? 2 : kCount}, 1)},
        {std::to_string(stage) + ".second", Full(own, DType::kF32, {2}, 1)}};
    EXPECT_THAT([&] { SaveTensors(path, tensors, {}, &parts); },
                ::testing::ThrowsMessage<Error>(HasSubstr("no memory")))
        << "rank " << stage;
  });
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Each stage would write a file of its own, under one name. A slice that no model is spread from is a mesh as any.
TEST(CheckpointTest, OneOfSeveralStagesIsNoModel) {
  const std::string path = ::testing::TempDir() + "/stages.safetensors";
  RunRanks(2, [&](World& world) {
    GptConfig config = kConfig;
    config.layers = 2;
    Gpt model(config);
    const auto context = Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"blocks.*", Pipeline("pp")}});
    const AdamW optimizer(model.AllParameters(), {});
    const auto tensors = CheckpointTensors(model, optimizer);
    EXPECT_THAT([&] { SaveTensors(path, tensors, {}); },
                ::testing::ThrowsMessage<Error>(HasSubstr("give SaveTensors PartsOf(model)")));
    SaveTensors(path, tensors, {}, PartsOf(model));
    EXPECT_EQ(SafetensorsReader(path).entries().size(), 3 * model.RegisteredParameters().size() + 1);
    const auto own = Bind(context, context->mesh().Slice({{"pp", world.rank()}}));
    const std::string own_path = path + std::to_string(world.rank());
    SaveTensors(own_path, {{"x", Full(own, DType::kF32, {2}, 1)}}, {});
    EXPECT_EQ(SafetensorsReader(own_path).entries().size(), 1u);
  });
}

TEST(CheckpointTest, FileOfAnotherModelIsRefused) {
  const std::string path = ::testing::TempDir() + "/other.safetensors";
  RunRanks(1, [&](World& world) {
    const auto context = Bind(world, DeviceMesh());
    SaveTensors(path, {{"wte.weight", Full(context, DType::kF32, {5, 8}, 0)}}, {});
    Gpt model(kConfig);
    Materialize(model, context);
    SafetensorsReader reader(path);
    EXPECT_THAT([&] { LoadParameters(reader, model); },
                ::testing::ThrowsMessage<Error>(HasSubstr("has no tensor 'wpe'")));
    EXPECT_THAT([&] { SaveTensors(path, {}, {}); },
                ::testing::ThrowsMessage<Error>(HasSubstr("nothing to save")));
  });
}

}  // namespace
}  // namespace weft
