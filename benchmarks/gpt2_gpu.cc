// Training speed of GPT-2 124M on one GPU: forward, backward, clipping and AdamW on random tokens, in bf16
// with parameters and optimizer state in f32.
//
//   bazel run --config=cuda //benchmarks:gpt2_gpu
//   bazel run --config=cuda //benchmarks:gpt2_gpu -- --peer="PyTorch=$(benchmarks/peers/pytorch_gpt2_gpu.py)"
//   bazel run --config=cuda //benchmarks:gpt2_gpu -- --profile      the ten ops that take longest
//
// Medians over the steps after a warm-up; a step ends when its loss is on the host. Model flops utilisation
// (MFU) is that of Chowdhery et al., "PaLM", appendix B, as nanoGPT counts: 6 N + 12 L d T flops per token, N
// parameters but those of positions, L layers, d wide, T tokens of a sequence, over the GPU's dense peak of
// the dtype by its data sheet. "strict" counts the products alone, and of attention what the causal mask
// leaves. The vocabulary is padded to 50304, as llm.c and nanoGPT have it.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "benchmarks/device_limits.h"
#include "benchmarks/figure.h"
#include "benchmarks/step_products.h"
#include "benchmarks/step_profile.h"
#include "benchmarks/train_row.h"
#include "runtime/device/device_backend.h"
#include "weft.h"

ABSL_FLAG(std::string, device, "cuda", "where it trains: cuda, or cpu to try the program");
ABSL_FLAG(std::string, model, "gpt2-124M",
          "gpt2-124M, or small: 6 layers, 6 heads, 384 wide, vocabulary 256");
ABSL_FLAG(int64_t, vocabulary, 50304, "tokens are below this; 0: the model's own");
ABSL_FLAG(std::string, dtype, "bf16", "of forward and backward: bf16 or f32");
ABSL_FLAG(bool, tf32, false, "products of f32 may round their operands to 11 significant bits");
ABSL_FLAG(int64_t, batch, 64, "sequences of a step");
ABSL_FLAG(int64_t, context, 1024, "tokens of a sequence");
ABSL_FLAG(int, steps, 20, "steps to measure");
ABSL_FLAG(int, warmup, 5, "steps before that");
ABSL_FLAG(double, peak_tflops, 0,
          "the GPU's dense peak of the dtype; 0: its data sheet's, where it is known");
ABSL_FLAG(bool, profile, false,
          "print the ten ops that take longest instead; each is waited for, so the step takes longer");
ABSL_FLAG(std::string, peer, "", "what others make of it, NAME=TOKENS_A_SECOND, separated by commas");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {
      .summary = "Measures training steps of GPT-2 124M on one GPU.",
      .groups = {{"Model", {"model", "vocabulary", "batch", "context", "dtype", "tf32"}},
                 {"Measurement",
                  {"device", "steps", "warmup", "peak_tflops", "profile", "peer", "log_format"}}},
      .examples = {"gpt2_gpu", "gpt2_gpu --batch=32 --peer=PyTorch=400000",
                   "gpt2_gpu --device=cpu --model=small --vocabulary=0 --batch=2 --context=64 --steps=2"}};
}

TrainRow RowFromFlags() {
  TrainRow row = {.model = absl::GetFlag(FLAGS_model),
                  .batch = absl::GetFlag(FLAGS_batch),
                  .context = absl::GetFlag(FLAGS_context),
                  .dtype = absl::GetFlag(FLAGS_dtype),
                  .vocabulary = absl::GetFlag(FLAGS_vocabulary),
                  .device = ParseDevice(absl::GetFlag(FLAGS_device)),
                  .allow_tf32 = absl::GetFlag(FLAGS_tf32)};
  for (const auto& [flag, value] :
       {std::pair("batch", row.batch), {"context", row.context}, {"steps", absl::GetFlag(FLAGS_steps)}}) {
    WEFT_REQUIRE(value >= 1, "--", flag, "=", value, ": expected 1 or more");
  }
  WEFT_REQUIRE(absl::GetFlag(FLAGS_warmup) >= 0, "--warmup=", absl::GetFlag(FLAGS_warmup),
               ": expected 0 or more");
  return row;
}

double PeakFlops(const TrainRow& row) {
  const double given = absl::GetFlag(FLAGS_peak_tflops) * 1e12;
  return given > 0 ? given : GpuPeakFlops(DeviceName({row.device}), row.ComputeDType());
}

// A token's, by PaLM's formula.
double PalmFlops(const TrainRow& row, int64_t parameters) {
  const GptConfig config = row.Config();
  const int64_t n = parameters - config.context * config.dim;
  return static_cast<double>(6 * n + 12 * config.layers * config.dim * row.context);
}

void ReportPeers(const std::string& name, double rate) {
  for (absl::string_view entry : absl::StrSplit(absl::GetFlag(FLAGS_peer), ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(entry, '=');
    double peer = 0;
    WEFT_REQUIRE(absl::SimpleAtod(parts.second, &peer) && peer > 0, "--peer: expected NAME=NUMBER, got '",
                 entry, "'");
    Report({.name = name,
            .value = rate,
            .unit = "tokens/s",
            .limit = peer,
            .limit_is = std::string(parts.first),
            .target = 1});
  }
}

void Measure(const TrainRow& row) {
  const std::string name = absl::StrCat("gpt2_gpu/", row.Name());
  const MeasuredRow measured = MeasureRow(row, absl::GetFlag(FLAGS_warmup), absl::GetFlag(FLAGS_steps));
  const double rate = static_cast<double>(row.num_tokens()) / measured.seconds();
  Report({.name = name, .value = rate, .unit = "tokens/s"});
  Report({.name = name + "/step", .value = measured.seconds() * 1e3, .unit = "ms"});
  const std::string device = DeviceName({row.device});
  const double peak = PeakFlops(row);
  Report({.name = name + "/mfu",
          .value = rate * PalmFlops(row, measured.parameters) / 1e12,
          .unit = "TFLOP/s",
          .limit = peak / 1e12,
          .limit_is = absl::StrCat(row.dtype, " peak of ", device),
          .target = 0.45});
  Report({.name = name + "/strict",
          .value = StepFlops(row.Config(), row.batch, row.context) / measured.seconds() / 1e12,
          .unit = "TFLOP/s",
          .limit = peak / 1e12,
          .limit_is = absl::StrCat(row.dtype, " peak of ", device)});
  Report({.name = name + "/memory",
          .value = static_cast<double>(measured.tensor_bytes) / (1 << 20),
          .unit = "MiB"});
  ReportPeers(name, rate);
}

void Profile(const TrainRow& row) {
  constexpr size_t kLines = 10;
  Tracer tracer;
  int64_t from_ns = 0;
  const int steps = absl::GetFlag(FLAGS_steps);
  const MeasuredRow measured = MeasureRow(row, absl::GetFlag(FLAGS_warmup), steps, &tracer, &from_ns);
  double step_ms = 0;
  for (double seconds : measured.step_seconds) step_ms += seconds * 1e3 / steps;
  std::vector<ProfileLine> lines = ProfileOf(tracer, from_ns);
  lines.resize(std::min(lines.size(), kLines));
  for (const ProfileLine& line : lines) {
    Report({.name = absl::StrCat("gpt2_gpu/profile/", line.name, " x", line.num_calls / steps),
            .value = line.seconds * 1e3 / steps,
            .unit = "ms",
            .limit = step_ms,
            .limit_is = "step, op by op"});
  }
}

int Run() {
  // CUDA reads it when it starts: every launch then waits for its kernel, and a span is as long as the
  // kernel.
  if (absl::GetFlag(FLAGS_profile)) setenv("CUDA_LAUNCH_BLOCKING", "1", /*overwrite=*/1);
  const TrainRow row = RowFromFlags();
  absl::GetFlag(FLAGS_profile) ? Profile(row) : Measure(row);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
