#include "benchmarks/train_row.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "runtime/base/philox.h"
#include "weft.h"

namespace weft {
namespace {

// How the model is spread: the mesh, the plan, and where the batch lies.
struct Spread {
  DeviceMesh mesh;
  Plan plan;
  Layout batch = Layout(/*ndim=*/2, /*num_axes=*/0);
};

Spread SpreadOf(const TrainRow& row) {
  if (row.parallel == "none") return {};
  const DeviceMesh data = DeviceMesh::Parse(absl::StrCat("dp=", row.ranks));
  if (row.parallel == "ddp") return {data, {{"", DataParallel("dp")}}, Layout::Parse("[dp, -]", data)};
  if (row.parallel == "fsdp") {
    return {data, {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}}, Layout::Parse("[dp, -]", data)};
  }
  WEFT_REQUIRE(row.parallel == "tp", "--parallel=", row.parallel, ": expected none, ddp, fsdp or tp");
  return {DeviceMesh::Parse(absl::StrCat("tp=", row.ranks)),
          {{"wte", VocabParallel("tp")},
           {"blocks.*.attn.qkv", ColumnParallel("tp")},
           {"blocks.*.attn.proj", RowParallel("tp")},
           {"blocks.*.mlp.up", ColumnParallel("tp")},
           {"blocks.*.mlp.down", RowParallel("tp")},
           {"head", ColumnParallel("tp")}},
          Layout(/*ndim=*/2, /*num_axes=*/1)};
}

DTensor RandomTokens(const IntrusivePtr<MeshContext>& context, const Layout& layout, const TrainRow& row,
                     uint64_t stream) {
  const auto vocabulary = static_cast<float>(row.Config().vocabulary);
  std::vector<int32_t> tokens(row.num_tokens());
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(UniformAt({.seed = 1, .stream = stream}, i) * vocabulary);
  }
  return DTensor::Distribute(context, Tensor::FromValues<int32_t>({row.batch, row.context}, tokens), layout);
}

}  // namespace

std::string TrainRow::Name() const {
  return absl::StrCat(model, "/", batch, "x", context, "/", dtype, "/", parallel);
}

int TrainRow::threads_per_rank() const {
  WEFT_REQUIRE(num_ranks() >= 1, "--ranks=", ranks, ": expected 1 or more");
  WEFT_REQUIRE(threads >= 1, "--threads=", threads, ": expected 1 or more");
  return std::max(1, threads / num_ranks());
}

int TrainRow::num_cores(int machine_cores) const {
  return std::min(threads_per_rank() * num_ranks(), machine_cores);
}

GptConfig TrainRow::Config() const {
  WEFT_REQUIRE(model == "gpt2-124M" || model == "small", "--model=", model, ": expected gpt2-124M or small");
  GptConfig config = GptConfig::Gpt2_124M();
  if (model == "small") config = {.vocabulary = 256, .layers = 6, .heads = 6, .dim = 384, .tied_head = true};
  config.context = context;
  if (vocabulary > 0) config.vocabulary = vocabulary;
  return config;
}

DType TrainRow::ComputeDType() const {
  WEFT_REQUIRE(dtype == "f32" || dtype == "bf16", "--dtype=", dtype, ": expected f32 or bf16");
  return dtype == "bf16" ? DType::kBF16 : DType::kF32;
}

std::vector<TrainRow> AllTrainRows() {
  const TrainRow gpt2 = {.model = "gpt2-124M", .batch = 4, .context = 64};
  const TrainRow gpt2_long = {.model = "gpt2-124M", .batch = 1, .context = 1024};
  const TrainRow small = {.model = "small", .batch = 16, .context = 256};
  std::vector<TrainRow> rows;
  for (const TrainRow& row : {gpt2, gpt2_long, small}) {
    for (const char* dtype : {"f32", "bf16"}) {
      rows.push_back(row);
      rows.back().dtype = dtype;
    }
    for (const char* parallel : {"ddp", "tp", "fsdp"}) {
      if (row.batch == 1 && std::string(parallel) != "tp") continue;  // nothing to split
      rows.push_back(row);
      rows.back().parallel = parallel;
    }
  }
  return rows;
}

double MeasuredRow::seconds() const { return Median(step_seconds); }

double MeasuredRow::exposed_fraction() const { return Median(exposed_fractions); }

MeasuredRow MeasureRow(const TrainRow& row, int warmup, int steps, Tracer* tracer,
                       int64_t* measured_from_ns) {
  const Spread spread = SpreadOf(row);
  MeasuredRow measured;
  const auto body = [&](World& world) {
    Gpt model(row.Config());
    const IntrusivePtr<MeshContext> context =
        Parallelize(model, world, spread.mesh, spread.plan, {.compute_dtype = row.ComputeDType()});
    const DTensor tokens = RandomTokens(context, spread.batch, row, 1);
    const DTensor targets = RandomTokens(context, spread.batch, row, 2);
    AdamW optimizer(model.AllParameters(), {});
    const auto record = [&](Trainer&, const StepMetrics& metrics) {
      if (metrics.step <= warmup || world.rank() != 0) return;
      measured.step_seconds.push_back(metrics.step_ms / 1e3);
      measured.exposed_fractions.push_back(metrics.exposed_fraction);
      measured.tensor_bytes = metrics.peak_bytes;
    };
    Trainer trainer(model, optimizer, {.callbacks = {{.on_metrics = record}}});
    for (int step = 0; step < warmup + steps; ++step) {
      if (step == warmup && world.rank() == 0 && tracer != nullptr) *measured_from_ns = tracer->Now();
      trainer.Step(row.num_tokens(), [&] { return model.Loss(tokens, targets).Mean(); });
    }
    trainer.Flush();
    if (world.rank() != 0) return;
    for (const Parameter* parameter : model.AllParameters()) {
      measured.parameters += parameter->spec().shape.num_elements();
    }
  };
  RunRanks(row.num_ranks(), body,
           {.device = row.device,
            .device_options = {.allow_tf32 = row.allow_tf32},
            .threads_per_rank = row.threads_per_rank(),
            .tracer = tracer});
  return measured;
}

}  // namespace weft
