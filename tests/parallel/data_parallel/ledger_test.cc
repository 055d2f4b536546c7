// What one training step of a GPT moves, by purpose, against closed forms of the model's sizes: the table in
// docs/communication.md. Bytes count what members of a group lack, summed over all groups.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/inspect/comm_report.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

struct Step {
  std::string mesh;
  DataPlan data = DataPlan::kDdp;
  bool sequence_parallel = false;
  int64_t batch = 4;
  DType dtype = DType::kF64;
  bool tied_head = false;
  std::optional<DType> compute_dtype = std::nullopt;
};

std::ostream& operator<<(std::ostream& out, const Step& step) {
  return out << step.mesh << (step.data == DataPlan::kFsdp ? " fsdp" : " ddp")
             << (step.sequence_parallel ? " sequence parallel" : "") << (step.tied_head ? " tied head" : "")
             << ", batch " << step.batch << ", " << DTypeName(step.dtype)
             << (step.compute_dtype ? absl::StrCat(" in ", DTypeName(*step.compute_dtype)) : "");
}

constexpr int64_t kSequence = 15;

GptConfig Config(const Step& step) {
  return {.vocabulary = 257,
          .context = 16,
          .layers = 2,
          .heads = 4,
          .dim = 32,
          .dropout = 0.1,
          .tied_head = step.tied_head};
}

// One step as the trainer makes it: mean loss, backward, norm, clipped update, the loss read back.
CommReport Measure(const Step& step) {
  CommReport report;
  const DeviceMesh mesh = DeviceMesh::Parse(step.mesh);
  const Plan plan = GptPlan(mesh, step.data, step.sequence_parallel);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Gpt model(Config(step));
    const auto context =
        Parallelize(model, world, mesh, plan, {.dtype = step.dtype, .compute_dtype = step.compute_dtype});
    AdamW optimizer(model.AllParameters(), {});
    const Tensor ones =
        Tensor::FromValues<int32_t>({step.batch, kSequence}, std::vector<int32_t>(step.batch * kSequence, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
    // The first step agrees on the order of gradients, and gathers its first unit and the second step's.
    Backward(model.Loss(tokens, tokens).Mean());
    optimizer.Step(1e-3);
    optimizer.ZeroGrad();
    world.ledger().Clear();
    const DTensor loss = model.Loss(tokens, tokens).Mean();
    Backward(loss);
    optimizer.Step(1e-3, ComputeGlobalNorm(optimizer.parameters(), 1).scale);
    loss.Item();
    const CommReport all = CollectCommReport(*context);
    if (world.rank() == 0) report = all;
  });
  return report;
}

struct ParameterSize {
  std::string path;
  int64_t elements = 0;
  bool split_by_tp = false;
  bool is_norm = false;
  // How often FSDP gathers it: the root's unit stays from forward to backward, a block's is gathered for each.
  int64_t gathers = 1;
};

// The model's parameters, written down from its definition.
std::vector<ParameterSize> Sizes(const GptConfig& c) {
  const int64_t d = c.dim;
  std::vector<ParameterSize> sizes = {{"wte.weight", c.vocabulary * d, true},
                                      {"wpe", c.context * d},
                                      {"ln_f.weight", d, false, true},
                                      {"ln_f.bias", d, false, true}};
  if (!c.tied_head) sizes.push_back({"head.weight", d * c.vocabulary, true});
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (const char* norm : {"ln_1", "ln_2"}) {
      sizes.push_back({absl::StrCat(norm, ".weight"), d, false, true, 2});
      sizes.push_back({absl::StrCat(norm, ".bias"), d, false, true, 2});
    }
    sizes.push_back({"attn.qkv.weight", 3 * d * d, true, false, 2});
    sizes.push_back({"attn.qkv.bias", 3 * d, true, false, 2});
    sizes.push_back({"attn.proj.weight", d * d, true, false, 2});
    sizes.push_back({"attn.proj.bias", d, false, false, 2});
    sizes.push_back({"mlp.up.weight", 4 * d * d, true, false, 2});
    sizes.push_back({"mlp.up.bias", 4 * d, true, false, 2});
    sizes.push_back({"mlp.down.weight", 4 * d * d, true, false, 2});
    sizes.push_back({"mlp.down.bias", d, false, false, 2});
  }
  return sizes;
}

using Bytes = std::map<std::string, int64_t>;

int64_t SizeOf(const DeviceMesh& mesh, absl::string_view axis) {
  const int index = mesh.FindAxis(axis);
  return index < 0 ? 1 : mesh.axis_size(index);
}

// The table of docs/communication.md.
Bytes ClosedForms(const Step& step) {
  const DeviceMesh mesh = DeviceMesh::Parse(step.mesh);
  const GptConfig config = Config(step);
  const int64_t dp = SizeOf(mesh, "dp"), tp = SizeOf(mesh, "tp"), item = ItemSize(step.dtype);
  const int64_t compute_item = ItemSize(step.compute_dtype.value_or(step.dtype));
  const bool fsdp = step.data == DataPlan::kFsdp;
  Bytes bytes = {{"activation", 0}, {"param", 0}, {"grad", 0}, {"loss", 0}, {"norm", 0}, {"metric", 0}};

  for (const ParameterSize& p : Sizes(config)) {
    const int64_t size = p.elements * item;
    const int64_t copies = p.split_by_tp ? 1 : tp;  // each coordinate of tp has its own groups over dp
    if (fsdp) bytes["param"] += p.gathers * (dp - 1) * p.elements * compute_item * copies;
    const bool over_sequence = step.sequence_parallel && p.is_norm;
    if (fsdp) {
      bytes["grad"] += (dp - 1) * size * copies + (over_sequence ? 2 * (tp - 1) * size : 0);
    } else {
      bytes["grad"] += over_sequence ? 2 * (dp * tp - 1) * size : 2 * (dp - 1) * size * copies;
    }
  }

  // [b, s, d]: two each way a block, one for the embedding, one for the head's input gradient; all-reduces,
  // or under sequence parallelism as many pairs of all-gather and reduce-scatter. [b, s]: three for
  // cross-entropy.
  const int64_t bs = step.batch * kSequence;
  bytes["activation"] =
      (4 * config.layers + 2) * 2 * (tp - 1) * bs * config.dim * compute_item + 3 * 2 * (tp - 1) * bs * item;
  if (step.sequence_parallel) bytes["activation"] += dp * (tp - 1) * kSequence * config.dim * compute_item;

  bytes["loss"] = 2 * tp * 2 * (dp - 1) * item;
  bytes["norm"] = fsdp ? 2 * (dp * tp - 1) * item : dp * 2 * (tp - 1) * item;
  return bytes;
}

class LedgerTest : public testing::TestWithParam<Step> {};

TEST_P(LedgerTest, BytesByPurposeAreTheClosedForms) {
  const CommReport report = Measure(GetParam());
  Bytes measured;
  int64_t total = 0;
  for (const auto& [purpose, bytes] : ClosedForms(GetParam())) measured[purpose] = 0, total += bytes;
  for (const CommRow& row : report.rows) measured[row.purpose] += row.num_bytes;
  EXPECT_EQ(measured, ClosedForms(GetParam())) << report.ToTable();
  EXPECT_EQ(report.TotalBytes(), total);
}

INSTANTIATE_TEST_SUITE_P(
    Steps, LedgerTest,
    testing::Values(Step{""}, Step{"dp=2"}, Step{"dp=4"}, Step{"dp=4", DataPlan::kDdp, false, 5},
                    Step{"tp=2"}, Step{"tp=4"}, Step{"dp=2,tp=2"}, Step{"dp=2", DataPlan::kFsdp},
                    Step{"dp=4", DataPlan::kFsdp, false, 5}, Step{"dp=2,tp=2", DataPlan::kFsdp},
                    Step{"dp=2,tp=2", DataPlan::kFsdp, false, 3, DType::kF32},
                    Step{"tp=2", DataPlan::kDdp, true}, Step{"tp=4", DataPlan::kDdp, true, 3, DType::kF32},
                    Step{"dp=2,tp=2", DataPlan::kDdp, true, 5}, Step{"dp=2,tp=2", DataPlan::kFsdp, true, 5},
                    Step{"dp=2", DataPlan::kFsdp, false, 4, DType::kF64, true},
                    Step{"dp=2,tp=2", DataPlan::kFsdp, true, 4, DType::kF32, true},
                    Step{"dp=2,tp=2", DataPlan::kFsdp, true, 4, DType::kF32, false, DType::kBF16}));

// The table of docs/data_parallel.md: bytes of parameters and gradients in a step of several microbatches.
struct DataBytes {
  int64_t grad = 0;
  int64_t param = 0;
  bool operator==(const DataBytes&) const = default;
};

void PrintTo(const DataBytes& bytes, std::ostream* out) {
  *out << "grad " << bytes.grad << ", param " << bytes.param;
}

DataBytes MeasureMicrobatches(DataPlan data, const FullyShardOptions& blocks, int microbatches,
                              int num_ranks = 3) {
  CommReport report;
  const DeviceMesh mesh({{"dp", num_ranks}});
  const Plan plan = GptPlan(mesh, data, /*sequence_parallel=*/false, blocks);
  RunRanks(num_ranks, [&](World& world) {
    Gpt model(Config({}));
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    AdamW optimizer(model.AllParameters(), {});
    const Tensor ones =
        Tensor::FromValues<int32_t>({num_ranks, kSequence}, std::vector<int32_t>(num_ranks * kSequence, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
    for (int step = 0; step < 2; ++step) {
      world.ledger().Clear();
      for (int i = 0; i < microbatches; ++i) {
        std::optional<NoSync> no_sync;
        if (i + 1 < microbatches) no_sync.emplace(context->state());
        Backward(model.Loss(tokens, tokens).Mean());
      }
      optimizer.Step(1e-3);
      optimizer.ZeroGrad();
    }
    const CommReport all = CollectCommReport(*context);
    if (world.rank() == 0) report = all;
  });
  DataBytes bytes;
  for (const CommRow& row : report.rows) {
    if (row.purpose == "grad") bytes.grad += row.num_bytes;
    if (row.purpose == "param") bytes.param += row.num_bytes;
  }
  return bytes;
}

TEST(LedgerTest, MicrobatchesUnderEveryDataPlan) {
  int64_t all = 0, inner = 0;  // bytes of parameters
  for (const ParameterSize& p : Sizes(Config({}))) {
    all += p.elements * 8;
    if (p.gathers == 2) inner += p.elements * 8;
  }
  constexpr int64_t kLacking = 3 - 1;
  for (const int64_t n : {1, 3}) {
    const auto measured = [&](DataPlan plan, Reshard reshard = Reshard::kAlways) {
      return MeasureMicrobatches(plan, {.reshard = reshard}, static_cast<int>(n));
    };
    EXPECT_EQ(measured(DataPlan::kDdp), (DataBytes{2 * kLacking * all, 0})) << n;
    EXPECT_EQ(measured(DataPlan::kZero1), (DataBytes{kLacking * all, kLacking * all})) << n;
    EXPECT_EQ(measured(DataPlan::kZero2), (DataBytes{n * kLacking * all, kLacking * all})) << n;
    EXPECT_EQ(measured(DataPlan::kFsdp),
              (DataBytes{n * kLacking * all, n * kLacking * (2 * inner + (all - inner))}))
        << n;
    EXPECT_EQ(measured(DataPlan::kFsdp, Reshard::kNever), (DataBytes{n * kLacking * all, kLacking * all}))
        << n;
    // Backward gathers within two groups of two.
    EXPECT_EQ(MeasureMicrobatches(DataPlan::kFsdp, {.reshard_to = 2}, static_cast<int>(n), /*num_ranks=*/4),
              (DataBytes{n * 3 * all, n * (3 * all + 2 * 1 * inner)}))
        << n;
  }
}

// Which collectives these are, for one block's modules: [b, s, d] is 4 x 15 x 32 of 8 bytes, 15360.
std::vector<CommRow> RowsOf(const CommReport& report, absl::string_view block) {
  std::vector<CommRow> rows;
  for (const CommRow& row : report.rows) {
    if (absl::StartsWith(row.path, block)) rows.push_back(row);
  }
  return rows;
}

TEST(LedgerTest, TensorParallelBlock) {
  const std::vector<CommRow> expected = {
      {"all_reduce", "tp", "activation", "blocks.1.attn.proj", 1, 30720},
      {"all_reduce", "tp", "activation", "blocks.1.attn.qkv", 1, 30720},
      {"all_reduce", "tp", "activation", "blocks.1.mlp.down", 1, 30720},
      {"all_reduce", "tp", "activation", "blocks.1.mlp.up", 1, 30720},
  };
  EXPECT_EQ(RowsOf(Measure({"tp=2"}), "blocks.1"), expected);
}

TEST(LedgerTest, SequenceParallelBlock) {
  std::vector<CommRow> expected;
  for (const char* kind : {"all_gather", "reduce_scatter"}) {
    for (const char* module : {"attn.proj", "attn.qkv", "mlp.down", "mlp.up"}) {
      expected.push_back({kind, "tp", "activation", absl::StrCat("blocks.1.", module), 1, 15360});
    }
  }
  std::vector<CommRow> measured;
  for (const CommRow& row : RowsOf(Measure({"tp=2", DataPlan::kDdp, true}), "blocks.1")) {
    if (row.purpose == "activation") measured.push_back(row);
  }
  EXPECT_EQ(measured, expected);
}

}  // namespace
}  // namespace weft
