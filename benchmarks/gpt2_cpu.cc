// Training speed of GPT-2 124M on the CPU: batch 4, 64 tokens, f32, AdamW, one rank, random tokens.
//
//   bazel run //benchmarks:gpt2_cpu -- --peer="$(benchmarks/peers/llmc.sh DIR)"
//   bazel run //benchmarks:gpt2_cpu -- --log_format=json                           one object a line
//
// The value is the median over the steps after a warm-up. The limit is llm.c's CPU trainer on the same
// machine, measured by the script, or else the 78.5 tokens/s that it makes on two cores of an AMD EPYC with
// twice the f32 peak of Zen 4 (f1e2ace, gcc -Ofast -march=native, OpenMP); the target is four times that.

#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/figure.h"
#include "runtime/base/philox.h"
#include "weft.h"

ABSL_FLAG(int, threads, 2, "threads of the rank");
ABSL_FLAG(int, steps, 10, "steps to measure");
ABSL_FLAG(int, warmup, 3, "steps before that");
ABSL_FLAG(double, peer, 0, "tokens/s of llm.c's CPU trainer on this machine (0: a figure from another one)");

namespace weft {
namespace {

constexpr int64_t kBatch = 4;
constexpr int64_t kSequence = 64;
constexpr double kLlmcElsewhere = 78.5;

FlagsUsage Usage() {
  return {.summary = "Measures training steps of GPT-2 124M on the CPU.",
          .groups = {{"Measurement", {"threads", "steps", "warmup", "peer", "log_format"}}},
          .examples = {"gpt2_cpu", "gpt2_cpu --threads=1 --log_format=json"}};
}

DTensor Tokens(const IntrusivePtr<MeshContext>& context, int64_t vocabulary, uint64_t stream) {
  std::vector<int32_t> tokens(kBatch * kSequence);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] =
        static_cast<int32_t>(UniformAt({.seed = 1, .stream = stream}, i) * static_cast<float>(vocabulary));
  }
  return DTensor::Distribute(context, Tensor::FromValues<int32_t>({kBatch, kSequence}, tokens), Layout(2, 0));
}

int Measure() {
  std::vector<double> rates;
  const auto body = [&](World& world) {
    GptConfig config = GptConfig::Gpt2_124M();
    config.context = kSequence;
    Gpt model(config);
    const IntrusivePtr<MeshContext> context = Parallelize(model, world, DeviceMesh(), {});
    const DTensor tokens = Tokens(context, config.vocabulary, 1);
    const DTensor targets = Tokens(context, config.vocabulary, 2);
    Trainer trainer(model, {});
    const int warmup = absl::GetFlag(FLAGS_warmup);
    for (int step = 0; step < warmup + absl::GetFlag(FLAGS_steps); ++step) {
      const StepMetrics metrics =
          trainer.Step(kBatch * kSequence, [&] { return model.Loss(tokens, targets).Mean(); });
      if (step >= warmup) rates.push_back(metrics.tokens_per_s);
    }
  };
  RunRanks(1, body, {.threads_per_rank = absl::GetFlag(FLAGS_threads)});
  const bool measured = absl::GetFlag(FLAGS_peer) > 0;
  Report(
      {.name = "gpt2_124M_train",
       .value = Median(rates),
       .unit = "tokens/s",
       .limit = measured ? absl::GetFlag(FLAGS_peer) : kLlmcElsewhere,
       .limit_is = measured ? "llm.c CPU trainer, on this machine" : "llm.c CPU trainer, on another machine",
       .target = 4});
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Measure); }
