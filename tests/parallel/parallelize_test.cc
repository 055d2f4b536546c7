#include "parallel/parallelize.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/clip.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"

namespace weft {
namespace {

GptConfig OneBlock() { return {.vocabulary = 257, .context = 16, .layers = 1, .heads = 4, .dim = 32}; }

// "at rest | in compute" by parameter path; one of the two if they are the same.
std::map<std::string, std::string> LayoutsOf(Module& model, const DeviceMesh& mesh, const Plan& plan) {
  std::map<std::string, std::string> layouts;
  for (const ResolvedParameter& parameter : ResolvePlan(model, mesh, plan).parameters) {
    const std::string at_rest = parameter.layouts.at_rest.ToString(mesh);
    const std::string compute = parameter.layouts.compute.ToString(mesh);
    layouts[parameter.path] = at_rest == compute ? at_rest : absl::StrCat(at_rest, " | ", compute);
  }
  return layouts;
}

std::map<std::string, std::string> GptLayouts(const std::string& mesh_text, DataPlan data,
                                              bool sequence_parallel) {
  Gpt model(OneBlock());
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  return LayoutsOf(model, mesh, GptPlan(mesh, data, sequence_parallel));
}

using Expected = std::map<std::string, std::string>;

const Expected& TensorParallelLayouts() {
  static const Expected layouts = {
      {"wte.weight", "[tp, -]"},
      {"wpe", "[-, -]"},
      {"blocks.0.ln_1.weight", "[-]"},
      {"blocks.0.ln_1.bias", "[-]"},
      {"blocks.0.attn.qkv.weight", "[-, -, tp, -]"},  // [d, 3, h, e]: heads
      {"blocks.0.attn.qkv.bias", "[-, tp, -]"},
      {"blocks.0.attn.proj.weight", "[tp, -, -]"},  // [h, e, d]
      {"blocks.0.attn.proj.bias", "[-]"},
      {"blocks.0.ln_2.weight", "[-]"},
      {"blocks.0.ln_2.bias", "[-]"},
      {"blocks.0.mlp.up.weight", "[-, tp]"},
      {"blocks.0.mlp.up.bias", "[tp]"},
      {"blocks.0.mlp.down.weight", "[tp, -]"},
      {"blocks.0.mlp.down.bias", "[-]"},
      {"ln_f.weight", "[-]"},
      {"ln_f.bias", "[-]"},
      {"head.weight", "[-, tp]"},
  };
  return layouts;
}

TEST(ResolvePlanTest, GptUnderTensorParallelism) {
  EXPECT_EQ(GptLayouts("dp=2, tp=2", DataPlan::kDdp, false), TensorParallelLayouts());
  // What a parameter is does not depend on where the sequence lies, nor on an axis that splits the batch.
  EXPECT_EQ(GptLayouts("dp=2, tp=2", DataPlan::kDdp, true), TensorParallelLayouts());
  EXPECT_EQ(GptLayouts("tp=2", DataPlan::kDdp, false), TensorParallelLayouts());
}

TEST(ResolvePlanTest, GptFullySharded) {
  const Expected expected = {
      {"wte.weight", "[dp, -] | [-, -]"},
      {"wpe", "[-, dp] | [-, -]"},
      {"blocks.0.ln_1.weight", "[dp] | [-]"},
      {"blocks.0.ln_1.bias", "[dp] | [-]"},
      {"blocks.0.attn.qkv.weight", "[-, dp, -, -] | [-, -, -, -]"},  // of 32, 3, 4, 8 only 3 divides
      {"blocks.0.attn.qkv.bias", "[dp, -, -] | [-, -, -]"},
      {"blocks.0.attn.proj.weight", "[-, -, dp] | [-, -, -]"},
      {"blocks.0.attn.proj.bias", "[dp] | [-]"},
      {"blocks.0.ln_2.weight", "[dp] | [-]"},
      {"blocks.0.ln_2.bias", "[dp] | [-]"},
      {"blocks.0.mlp.up.weight", "[-, dp] | [-, -]"},
      {"blocks.0.mlp.up.bias", "[dp] | [-]"},
      {"blocks.0.mlp.down.weight", "[dp, -] | [-, -]"},
      {"blocks.0.mlp.down.bias", "[dp] | [-]"},
      {"ln_f.weight", "[dp] | [-]"},
      {"ln_f.bias", "[dp] | [-]"},
      {"head.weight", "[-, dp] | [-, -]"},
  };
  EXPECT_EQ(GptLayouts("dp=3", DataPlan::kFsdp, false), expected);
}

TEST(ResolvePlanTest, GptFullyShardedOverTensorParallel) {
  const Expected expected = {
      {"wte.weight", "[tp, dp] | [tp, -]"},  // 257 rows
      {"wpe", "[dp, -] | [-, -]"},
      {"blocks.0.ln_1.weight", "[dp] | [-]"},
      {"blocks.0.ln_1.bias", "[dp] | [-]"},
      {"blocks.0.attn.qkv.weight", "[dp, -, tp, -] | [-, -, tp, -]"},
      {"blocks.0.attn.qkv.bias", "[-, tp, dp] | [-, tp, -]"},
      {"blocks.0.attn.proj.weight", "[tp, dp, -] | [tp, -, -]"},
      {"blocks.0.attn.proj.bias", "[dp] | [-]"},
      {"blocks.0.ln_2.weight", "[dp] | [-]"},
      {"blocks.0.ln_2.bias", "[dp] | [-]"},
      {"blocks.0.mlp.up.weight", "[dp, tp] | [-, tp]"},
      {"blocks.0.mlp.up.bias", "[tp.dp] | [tp]"},
      {"blocks.0.mlp.down.weight", "[tp, dp] | [tp, -]"},
      {"blocks.0.mlp.down.bias", "[dp] | [-]"},
      {"ln_f.weight", "[dp] | [-]"},
      {"ln_f.bias", "[dp] | [-]"},
      {"head.weight", "[dp, tp] | [-, tp]"},
  };
  EXPECT_EQ(GptLayouts("dp=2, tp=2", DataPlan::kFsdp, false), expected);
  EXPECT_EQ(GptLayouts("dp=2, tp=2", DataPlan::kFsdp, true), expected);
}

TEST(ResolvePlanTest, PlanOrderIsNestingOrder) {
  Gpt model(OneBlock());
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const PlanEntry vocab = {"wte", VocabParallel("tp")};
  const PlanEntry fsdp = {"", FullyShard("dp", {.dim = 0})};
  EXPECT_EQ(LayoutsOf(model, mesh, {vocab, fsdp}).at("wte.weight"), "[tp.dp, -] | [tp, -]");
  EXPECT_EQ(LayoutsOf(model, mesh, {fsdp, vocab}).at("wte.weight"), "[dp.tp, -] | [tp, -]");
  // HSDP is two entries: replicas outside, shards inside.
  EXPECT_EQ(LayoutsOf(model, mesh, {{"", DataParallel("dp")}, {"", FullyShard("tp")}}).at("wte.weight"),
            "[-, tp] | [-, -]");
}

TEST(ResolvePlanTest, TheInnermostUnitOwns) {
  Gpt model(OneBlock());
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, ep=2");
  // Units of the same axis: a block, and its attention inside. Nothing above the block is sharded over dp.
  const Plan inner = {{"blocks.*", FullyShard("dp")}, {"blocks.0.attn", FullyShard("dp")}};
  const Expected layouts = LayoutsOf(model, mesh, inner);
  EXPECT_EQ(layouts.at("blocks.0.mlp.up.bias"), "[dp] | [-]");
  EXPECT_EQ(layouts.at("blocks.0.attn.proj.bias"), "[dp] | [-]");
  EXPECT_EQ(layouts.at("wte.weight"), "[-, -]");
  EXPECT_EQ(layouts.at("ln_f.bias"), "[-]");
  // The order of the entries does not say which unit owns, and the root takes the rest.
  const Plan root_first = {{"", FullyShard("dp")}, {"blocks.*", FullyShard("dp")}};
  const Plan root_last = {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}};
  EXPECT_EQ(LayoutsOf(model, mesh, root_first), LayoutsOf(model, mesh, root_last));
  EXPECT_EQ(LayoutsOf(model, mesh, root_last).at("ln_f.bias"), "[dp] | [-]");
  // Units of another axis are apart: the root's over ep takes what the blocks' over dp have, too.
  const Plan two_axes = {{"blocks.*", FullyShard("dp")}, {"", FullyShard("ep")}};
  EXPECT_EQ(LayoutsOf(model, mesh, two_axes).at("blocks.0.mlp.up.bias"), "[dp.ep] | [-]");
  EXPECT_EQ(LayoutsOf(model, mesh, two_axes).at("wpe"), "[ep, -] | [-, -]");
}

TEST(ResolvePlanTest, PathsAreWholeComponents) {
  GptConfig config = OneBlock();
  config.layers = 11;
  Gpt model(config);
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  const Expected layouts = LayoutsOf(model, mesh, {{"blocks.1", FullyShard("dp")}});
  EXPECT_EQ(layouts.at("blocks.1.mlp.up.bias"), "[dp] | [-]");
  EXPECT_EQ(layouts.at("blocks.10.mlp.up.bias"), "[-]");
}

TEST(ResolvePlanTest, AnEmptyPlanReplicates) {
  Gpt model(OneBlock());
  for (const auto& [path, layouts] : LayoutsOf(model, DeviceMesh::Parse("dp=2, tp=2"), {})) {
    EXPECT_EQ(layouts.find("p"), std::string::npos) << path << ": " << layouts;
  }
  for (const auto& [path, layouts] : LayoutsOf(model, DeviceMesh(), {})) {
    EXPECT_EQ(layouts.find("p"), std::string::npos) << path << ": " << layouts;
  }
}

ResolvedModule FindModule(const ResolvedPlan& plan, const std::string& path) {
  for (const ResolvedModule& module : plan.modules) {
    if (module.path == path) return module;
  }
  ADD_FAILURE() << "no module " << path;
  return {};
}

TEST(ResolvePlanTest, StylesPinBorders) {
  Gpt model(OneBlock());
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const int dp = 0, tp = 1;
  const Placement whole = Replicate(), batch = Shard(0), sequence = Shard(1);
  const ResolvedPlan plain = ResolvePlan(model, mesh, GptPlan(mesh, DataPlan::kFsdp, false));
  EXPECT_EQ(FindModule(plain, ""),
            (ResolvedModule{"", {FullyShard("dp")}, {.input = {{dp, batch, std::nullopt}}, .output = {}}}));
  EXPECT_EQ(FindModule(plain, "blocks.0"), (ResolvedModule{"blocks.0", {FullyShard("dp")}, {}}));
  EXPECT_EQ(FindModule(plain, "blocks.0.ln_1"), (ResolvedModule{"blocks.0.ln_1", {}, {}}));
  EXPECT_EQ(FindModule(plain, "wte"),
            (ResolvedModule{"wte", {VocabParallel("tp")}, {.input = {}, .output = {{tp, whole, whole}}}}));
  EXPECT_EQ(FindModule(plain, "blocks.0.attn.qkv").border,
            (ModuleBorder{.input = {{tp, whole, std::nullopt}}, .output = {}}));
  EXPECT_EQ(FindModule(plain, "blocks.0.attn.proj").border,
            (ModuleBorder{.input = {}, .output = {{tp, whole, whole}}}));

  const ResolvedPlan split = ResolvePlan(model, mesh, GptPlan(mesh, DataPlan::kDdp, true));
  EXPECT_EQ(FindModule(split, "").border, (ModuleBorder{.input = {{dp, batch, std::nullopt}}, .output = {}}));
  EXPECT_EQ(FindModule(split, "blocks.0.ln_1"),
            (ResolvedModule{"blocks.0.ln_1",
                            {SequenceParallel("tp")},
                            {.input = {{tp, sequence, std::nullopt}}, .output = {}}}));
  EXPECT_EQ(FindModule(split, "blocks.0.mlp.down"),
            (ResolvedModule{"blocks.0.mlp.down",
                            {RowParallel("tp", {.output = Shard(1)})},
                            {.input = {}, .output = {{tp, sequence, whole}}}}));
}

TEST(ResolvePlanTest, MistakesAreNamed) {
  Gpt model(OneBlock());
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=3");
  const auto message = [&](const Plan& plan) {
    return InvalidArgumentMessage([&] { ResolvePlan(model, mesh, plan); });
  };
  EXPECT_EQ(message({{"blocks.*.attn.kqv", ColumnParallel("tp")}}),
            "plan entry \"blocks.*.attn.kqv\": ColumnParallel(tp): no module or parameter matches this "
            "path; the nearest is "
            "'blocks.0.attn.qkv'");
  EXPECT_EQ(message({{"wqe", DataParallel("dp")}}),
            "plan entry \"wqe\": DataParallel(dp): no module or parameter matches this path; the nearest "
            "is 'wte'");
  // A path without those above it; the root, which is near every short text, is not meant.
  const auto nearest = [&](const std::string& path) {
    const std::string error = message({{path, DataParallel("dp")}});
    return error.substr(error.rfind("the nearest is "));
  };
  EXPECT_EQ(nearest("mlp"), "the nearest is 'blocks.0.mlp'");
  EXPECT_EQ(nearest("mpl.up"), "the nearest is 'blocks.0.mlp.up'");
  EXPECT_EQ(nearest("blok"), "the nearest is 'blocks.0'");
  EXPECT_EQ(nearest("blocks.mlp"), "the nearest is 'blocks.0.mlp'");
  EXPECT_EQ(message({{"", FullyShard("fsdp")}}),
            "plan entry \"\": FullyShard(fsdp): the mesh (dp=2, tp=3) has no axis 'fsdp'");
  EXPECT_EQ(message({{"blocks.*.attn.qkv", ColumnParallel("tp")}}),
            "plan entry \"blocks.*.attn.qkv\": ColumnParallel(tp): axis 'tp' of size 3 does not divide the 4 "
            "heads (dim "
            "2) of 'blocks.0.attn.qkv.weight'");
  EXPECT_EQ(message({{"blocks.*.attn.proj", RowParallel("tp")}}),
            "plan entry \"blocks.*.attn.proj\": RowParallel(tp): axis 'tp' of size 3 does not divide the 4 "
            "heads (dim "
            "0) of 'blocks.0.attn.proj.weight'");
  // The vocabulary, 257, and hidden features may be uneven.
  EXPECT_EQ(message({{"wte", VocabParallel("tp")}, {"blocks.*.mlp.up", ColumnParallel("tp")}}), "no error");
  EXPECT_EQ(message({{"blocks.0.ln_1", ColumnParallel("tp")}}),
            "plan entry \"blocks.0.ln_1\": ColumnParallel(tp): module 'blocks.0.ln_1' declares no dim that "
            "this style splits: it declares none");
  EXPECT_EQ(message({{"blocks.*.mlp", ColumnParallel("tp")}}),
            "plan entry \"blocks.*.mlp\": ColumnParallel(tp): module 'blocks.0.mlp' declares no dim that "
            "this style splits: it declares none");
  EXPECT_EQ(message({{"wte", ColumnParallel("tp")}}),
            "plan entry \"wte\": ColumnParallel(tp): module 'wte' declares no dim that this style splits: it "
            "declares vocabulary (dim 0)");
}

TEST(ResolvePlanTest, AnAxisSplitsAParameterOnce) {
  Gpt model(OneBlock());
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const auto message = [&](const Plan& plan) {
    return InvalidArgumentMessage([&] { ResolvePlan(model, mesh, plan); });
  };
  EXPECT_EQ(message({{"wte", VocabParallel("tp")}, {"", FullyShard("tp")}}),
            "plan entry \"\": FullyShard(tp): 'wte.weight' is already split over axis 'tp' by another entry "
            "([tp, -])");
  EXPECT_EQ(message({{"", FullyShard("tp")}, {"wte", VocabParallel("tp")}}),
            "plan entry \"wte\": VocabParallel(tp): 'wte.weight' is already split over axis 'tp' by another "
            "entry ([-, "
            "tp])");
  EXPECT_EQ(message({{"blocks.*.mlp.up", ColumnParallel("tp")}, {"**.up", RowParallel("tp")}}),
            "plan entry \"**.up\": RowParallel(tp): 'blocks.0.mlp.up.weight' is already split over axis 'tp' "
            "by another "
            "entry ([-, tp])");
  EXPECT_EQ(message({{"blocks.*", FullyShard("dp")}, {"blocks.0", FullyShard("dp")}}),
            "plan entry \"blocks.0\": FullyShard(dp): 'blocks.0.ln_1.weight' is already split over axis 'dp' "
            "by another "
            "entry ([dp])");
}

TEST(ResolvedPlanTest, Table) {
  // Two modules: what no entry reaches is there too.
  class Two : public Module {
   public:
    Linear up{this, "up", 6, 9};
    LayerNorm norm{this, "norm", 9};
  };
  Two model;
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const Plan plan = {{"up", ColumnParallel("tp")}, {"up", FullyShard("dp")}};
  EXPECT_EQ(ResolvePlan(model, mesh, plan).ToTable(model, mesh),
            "parameter    style                                shape   at rest   in compute  gradient  state "
            "    elements per rank\n"
            "up.weight    ColumnParallel(tp) + FullyShard(dp)  [6, 9]  [dp, tp]  [-, tp]     [dp, tp]  [dp, "
            "tp]  15\n"
            "up.bias      ColumnParallel(tp) + FullyShard(dp)  [9]     [tp.dp]   [tp]        [tp.dp]   "
            "[tp.dp]   3\n"
            "norm.weight  -                                    [9]     [-]       [-]         [-]       [-]   "
            "    9\n"
            "norm.bias    -                                    [9]     [-]       [-]         [-]       [-]   "
            "    9\n");
}

TEST(ParallelizeTest, GivesEveryParameterItsPieceAndNoMore) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const Plan plan = GptPlan(mesh, DataPlan::kFsdp, false);
  RunRanks(4, [&](World& world) {
    Gpt model(OneBlock());
    const ResolvedPlan resolved = ResolvePlan(model, mesh, plan);
    EXPECT_EQ(world.allocator()->stats().num_allocations, 0);
    const auto context =
        Parallelize(model, world, mesh, plan, {.dtype = DType::kF64, .start_values = StartValues::kTrust});
    int64_t expected = 0;
    const std::vector<Parameter*> parameters = model.AllParameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_EQ(parameters[i]->layouts(), resolved.parameters[i].layouts) << parameters[i]->path();
      const ShardBox box = LocalBox(parameters[i]->spec().shape, resolved.parameters[i].layouts.at_rest, mesh,
                                    mesh.CoordinateOf(world.rank()));
      EXPECT_EQ(parameters[i]->at_rest().ToLocal().shape(), box.shape) << parameters[i]->path();
      EXPECT_EQ(parameters[i]->at_rest().dtype(), DType::kF64);
      expected += RoundUpToGranule(box.shape.num_elements() * 8);
    }
    EXPECT_EQ(world.allocator()->stats().peak_bytes, expected);
    // The ranks have compared their machines, and sent nothing else: two figures of each axis and two more.
    const std::vector<LedgerEntry> entries = world.ledger().entries();
    ASSERT_EQ(entries.size(), 1u);
    EXPECT_EQ(entries[0].tag.purpose, static_cast<uint8_t>(Purpose::kMetric));
    EXPECT_EQ(entries[0].num_bytes, world.rank() == 0 ? 3 * 4 * 6 * 8 : 0);
    EXPECT_EQ(model.blocks[0]->attn.qkv.border(), FindModule(resolved, "blocks.0.attn.qkv").border);
    EXPECT_EQ(model.context().get(), context.get());
  });
}

// A plan that names each of 2000 blocks, against one that names all: the same, and not block times block.
TEST(ResolvePlanTest, LargePlans) {
  GptConfig config = OneBlock();
  config.layers = 2000;
  Gpt model(config);
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  std::vector<PlanEntry> entries;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    entries.push_back({absl::StrCat("blocks.", layer, ".mlp.up"), ColumnParallel("tp")});
    entries.push_back({absl::StrCat("blocks.", layer), FullyShard("dp")});
  }
  const Plan all = {{"blocks.*.mlp.up", ColumnParallel("tp")}, {"blocks.*", FullyShard("dp")}};
  EXPECT_EQ(LayoutsOf(model, mesh, Plan(entries)), LayoutsOf(model, mesh, all));
  EXPECT_EQ(LayoutsOf(model, mesh, all).at("blocks.1999.mlp.up.weight"), "[dp, tp] | [-, tp]");
}

// A rank's world that writes down which groups are made through it.
class RecordingWorld final : public World {
 public:
  explicit RecordingWorld(World& world)
      : World(world.rank(), world.size(), /*num_threads=*/1, MakeCpuAllocator(), nullptr), world_(world) {}
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override {
    names.push_back(name);
    return world_.NewGroup(name, ranks);
  }
  std::vector<std::string> names;

 private:
  World& world_;
};

// One step's groups, all made by Parallelize, alike on every rank.
TEST(ParallelizeTest, MakesThePlansGroupsInOneOrder) {
  struct Case {
    const char* mesh;
    DataPlan data;
    std::vector<std::string> groups;
  };
  // First that of all ranks, which compares their machines, and the others of the rank's own thread, then those of the lanes:
  // parameters, gradients.
  for (const Case& c :
       {Case{"dp=2, tp=2", DataPlan::kFsdp, {"dp.tp", "dp", "tp", "dp", "dp"}},
        Case{"dp=2, tp=2", DataPlan::kDdp, {"dp.tp", "dp", "tp", "dp"}},
        Case{"dp=2", DataPlan::kFsdp, {"dp", "dp", "dp"}}, Case{"dp=2", DataPlan::kZero1, {"dp", "dp", "dp"}},
        Case{"dp=1, tp=2", DataPlan::kFsdp, {"tp"}}}) {
    const DeviceMesh mesh = DeviceMesh::Parse(c.mesh);
    const Plan plan = GptPlan(mesh, c.data, /*sequence_parallel=*/false);
    RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
      RecordingWorld recording(world);
      Gpt model(OneBlock());
      const auto context = Parallelize(model, recording, mesh, plan);
      EXPECT_EQ(recording.names, c.groups) << c.mesh;
      const DTensor tokens = Full(context, DType::kI32, {4, 8}, 1, BatchLayout(mesh, plan));
      const DTensor loss = model.Loss(tokens, tokens).Mean();
      Backward(loss);
      ComputeGlobalNorm(model.AllParameters(), 1);
      EXPECT_EQ(recording.names, c.groups) << c.mesh;
    });
  }
}

}  // namespace
}  // namespace weft
