// Training speed of a GPT on the CPU: forward, backward, clipping and AdamW on random tokens.
//
//   bazel run //benchmarks:train_step                                       GPT-2 124M, batch 4 x 64, one
//   rank, two threads bazel run //benchmarks:train_step -- --model=small --batch=16 --context=256 --mesh=dp=2
//   --threads=1 bazel run //benchmarks:train_step -- --peer="llm.c=$(benchmarks/peers/llmc.sh DIR)"
//   --log_format=json
//
// Tokens/s are the median over the steps after a warm-up, held against the machine's peak for the model's
// products (6 flops a parameter and token, and attention's) and against the peers that --peer names.

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/figure.h"
#include "runtime/base/philox.h"
#include "weft.h"

ABSL_FLAG(std::string, model, "gpt2-124M",
          "gpt2-124M, or small: 6 layers, 6 heads, 384 wide, vocabulary 256");
ABSL_FLAG(std::string, parallel, "none", "none: one rank; ddp, fsdp or tp: over --ranks");
ABSL_FLAG(int, ranks, 2, "ranks of --parallel");
ABSL_FLAG(std::string, dtype, "f32", "of forward and backward: f32 or bf16");
ABSL_FLAG(int64_t, batch, 4, "sequences, global");
ABSL_FLAG(int64_t, context, 64, "tokens a sequence");
ABSL_FLAG(int, threads, 2, "threads of each rank");
ABSL_FLAG(int, steps, 10, "steps to measure");
ABSL_FLAG(int, warmup, 3, "steps before that");
ABSL_FLAG(std::string, peer, "", "what others make of the same, in tokens/s: NAME=RATE,NAME=RATE");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Measures training steps of a GPT on the CPU.",
          .groups = {{"Model", {"model", "batch", "context", "dtype"}},
                     {"Parallelism", {"parallel", "ranks", "threads"}},
                     {"Measurement", {"steps", "warmup", "peer", "log_format"}}},
          .examples = {"train_step --peer=llm.c=54.0",
                       "train_step --model=small --batch=16 --context=256 --parallel=ddp --threads=1"}};
}

GptConfig ConfigFromFlags() {
  const std::string name = absl::GetFlag(FLAGS_model);
  WEFT_REQUIRE(name == "gpt2-124M" || name == "small", "--model=", name, ": expected gpt2-124M or small");
  GptConfig config = GptConfig::Gpt2_124M();
  if (name == "small") config = {.vocabulary = 256, .layers = 6, .heads = 6, .dim = 384, .tied_head = true};
  config.context = absl::GetFlag(FLAGS_context);
  return config;
}

DType ComputeDTypeFromFlags() {
  const std::string name = absl::GetFlag(FLAGS_dtype);
  WEFT_REQUIRE(name == "f32" || name == "bf16", "--dtype=", name, ": expected f32 or bf16");
  return name == "bf16" ? DType::kBF16 : DType::kF32;
}

// How the model is spread: the mesh, the plan, and where the batch lies.
struct Spread {
  DeviceMesh mesh;
  Plan plan;
  Layout batch = Layout(/*ndim=*/2, /*num_axes=*/0);
};

Spread SpreadFromFlags() {
  const std::string name = absl::GetFlag(FLAGS_parallel);
  if (name == "none") return {};
  const int ranks = absl::GetFlag(FLAGS_ranks);
  const DeviceMesh data = DeviceMesh::Parse(absl::StrCat("dp=", ranks));
  if (name == "ddp") return {data, {{"", DataParallel("dp")}}, Layout::Parse("[dp, -]", data)};
  if (name == "fsdp") {
    return {data, {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}}, Layout::Parse("[dp, -]", data)};
  }
  WEFT_REQUIRE(name == "tp", "--parallel=", name, ": expected none, ddp, fsdp or tp");
  return {DeviceMesh::Parse(absl::StrCat("tp=", ranks)),
          {{"wte", VocabParallel("tp")},
           {"blocks.*.attn.qkv", ColumnParallel("tp")},
           {"blocks.*.attn.proj", RowParallel("tp")},
           {"blocks.*.mlp.up", ColumnParallel("tp")},
           {"blocks.*.mlp.down", RowParallel("tp")},
           {"head", ColumnParallel("tp")}},
          Layout(/*ndim=*/2, /*num_axes=*/1)};
}

// Errors: InvalidArgument for a --peer that does not read so.
std::vector<std::pair<std::string, double>> PeersFromFlags() {
  std::vector<std::pair<std::string, double>> peers;
  for (absl::string_view entry : absl::StrSplit(absl::GetFlag(FLAGS_peer), ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(entry, '=');
    double rate = 0;
    WEFT_REQUIRE(absl::SimpleAtod(parts.second, &rate) && rate > 0, "--peer: expected NAME=RATE, got '",
                 entry, "'");
    peers.push_back({parts.first, rate});
  }
  return peers;
}

DTensor RandomTokens(const IntrusivePtr<MeshContext>& context, const Layout& layout, const Shape& shape,
                     int64_t vocabulary, uint64_t stream) {
  std::vector<int32_t> tokens(shape.num_elements());
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] =
        static_cast<int32_t>(UniformAt({.seed = 1, .stream = stream}, i) * static_cast<float>(vocabulary));
  }
  return DTensor::Distribute(context, Tensor::FromValues<int32_t>(shape, tokens), layout);
}

struct Measured {
  std::vector<double> tokens_per_s;
  std::vector<double> comm_fractions;
  int64_t peak_bytes = 0;
  int64_t parameters = 0;
};

Measured TrainSome(const GptConfig& config, const Spread& spread) {
  const Shape shape = {absl::GetFlag(FLAGS_batch), absl::GetFlag(FLAGS_context)};
  const int warmup = absl::GetFlag(FLAGS_warmup);
  Measured measured;
  const auto body = [&](World& world) {
    Gpt model(config);
    const IntrusivePtr<MeshContext> context =
        Parallelize(model, world, spread.mesh, spread.plan, {.compute_dtype = ComputeDTypeFromFlags()});
    const DTensor tokens = RandomTokens(context, spread.batch, shape, config.vocabulary, 1);
    const DTensor targets = RandomTokens(context, spread.batch, shape, config.vocabulary, 2);
    Trainer trainer(model, {});
    for (int step = 0; step < warmup + absl::GetFlag(FLAGS_steps); ++step) {
      const StepMetrics metrics =
          trainer.Step(shape.num_elements(), [&] { return model.Loss(tokens, targets).Mean(); });
      if (step < warmup || world.rank() != 0) continue;
      measured.tokens_per_s.push_back(metrics.tokens_per_s);
      measured.comm_fractions.push_back(metrics.comm_fraction);
      measured.peak_bytes = metrics.peak_bytes;
    }
    if (world.rank() != 0) return;
    for (const Parameter* parameter : model.AllParameters()) {
      measured.parameters += parameter->spec().shape.num_elements();
    }
  };
  RunRanks(static_cast<int>(spread.mesh.num_ranks()), body,
           {.threads_per_rank = absl::GetFlag(FLAGS_threads)});
  return measured;
}

int Run() {
  const GptConfig config = ConfigFromFlags();
  const Spread spread = SpreadFromFlags();
  const std::vector<std::pair<std::string, double>> peers = PeersFromFlags();
  const Measured measured = TrainSome(config, spread);
  const std::string name = absl::StrCat("train_step/", absl::GetFlag(FLAGS_model), "/",
                                        absl::GetFlag(FLAGS_batch), "x", absl::GetFlag(FLAGS_context), "/",
                                        absl::GetFlag(FLAGS_dtype), "/", absl::GetFlag(FLAGS_parallel));
  const double rate = Median(measured.tokens_per_s);
  Report({.name = name, .value = rate, .unit = "tokens/s"});
  for (const auto& [peer, peer_rate] : peers) {
    Report({.name = name,
            .value = rate,
            .unit = "tokens/s",
            .limit = peer_rate,
            .limit_is = peer,
            .target = peer == "llm.c" ? 4.0 : 1.5});
  }
  // Products alone: forward and twice that backward for each parameter, the scores and their use in
  // attention.
  const double flops = static_cast<double>(6 * measured.parameters) +
                       static_cast<double>(6 * config.layers * config.context * config.dim);
  Report({.name = name + "/flops", .value = rate * flops / 1e9, .unit = "GFLOP/s"});
  Report(
      {.name = name + "/peak", .value = static_cast<double>(measured.peak_bytes) / (1 << 20), .unit = "MiB"});
  if (spread.mesh.num_ranks() > 1) {
    Report({.name = name + "/communication", .value = Median(measured.comm_fractions), .unit = "of step"});
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
