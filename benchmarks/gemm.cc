// Matrix products of GPT-2 124M by the public call, forward and both gradients, f32 and bf16, held against
// the machine's own peak.
//
//   bazel run //benchmarks:gemm                          one thread, 256 and 1024 tokens
//   bazel run //benchmarks:gemm -- --threads=2 --only=256/up    two threads, the products with that in their
//   name
//
// Rates are the medians of at least three calls. After the products comes their mix:
// a whole step's, 12 layers and the head, each as often as a step runs it.

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "benchmarks/machine_limits.h"
#include "benchmarks/step_products.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/launch/run_ranks.h"

ABSL_FLAG(int, threads, 1, "threads of the one rank");
ABSL_FLAG(std::string, only, "", "measure only the products with this in their name, as in 256/up/dx");
ABSL_FLAG(double, seconds, 0.2, "least time for each figure");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Measures the matrix products of GPT-2 124M beside the machine's peak.",
          .groups = {{"Measurement", {"threads", "only", "seconds", "log_format"}}},
          .examples = {"gemm --log_format=json", "gemm --threads=2 --only=1024/head"}};
}

// What a step's products of one dtype take together.
struct Mix {
  double flops = 0;
  double seconds = 0;

  void Add(const StepProduct& product, double rate) {
    const double all = static_cast<double>(product.count) * product.flops();
    flops += all;
    seconds += all / rate;
  }
};

class Measurement {
 public:
  explicit Measurement(World& world)
      : threads_(absl::GetFlag(FLAGS_threads)),
        context_(Bind(world, DeviceMesh())),
        peak_f32_(PeakFlopsF32(threads_)),
        peak_bf16_(PeakFlopsBF16(threads_)) {}

  void RunTokens(int64_t tokens) {
    Mix f32;
    Mix bf16;
    for (const StepProduct& product : ProductsOf(GptConfig::Gpt2_124M(), /*batch=*/1, tokens)) {
      const std::string name = absl::StrCat(tokens, "/", product.name);
      if (!absl::StrContains(name, absl::GetFlag(FLAGS_only))) continue;
      RunProduct(name, product, f32, bf16);
    }
    if (f32.flops > 0) ReportMix(absl::StrCat(tokens), f32, bf16);
  }

 private:
  // Flops a second.
  double RateOf(const StepProduct& product, DType dtype) {
    return product.flops() / SecondsOf(product, context_, dtype, absl::GetFlag(FLAGS_seconds));
  }

  void RunProduct(const std::string& name, const StepProduct& product, Mix& f32, Mix& bf16) {
    const double rate = RateOf(product, DType::kF32);
    f32.Add(product, rate);
    ReportShare(name, "f32", rate, peak_f32_);
    if (peak_bf16_ == 0) return;
    const double bf16_rate = RateOf(product, DType::kBF16);
    bf16.Add(product, bf16_rate);
    ReportSpeedup(name, bf16_rate, rate);
  }

  void ReportMix(const std::string& tokens, const Mix& f32, const Mix& bf16) {
    const std::string name = tokens + "/mix";
    const double rate = f32.flops / f32.seconds;
    ReportShare(name, "f32", rate, peak_f32_);
    if (bf16.flops == 0) return;
    const double bf16_rate = bf16.flops / bf16.seconds;
    ReportShare(name, "bf16", bf16_rate, peak_bf16_);
    ReportSpeedup(name, bf16_rate, rate);
  }

  void ReportShare(const std::string& name, const std::string& dtype, double rate, double peak) {
    Report({.name = absl::StrCat("gemm/", threads_, "/", name, "/", dtype),
            .value = rate / 1e9,
            .unit = "GFLOP/s",
            .limit = peak / 1e9,
            .limit_is = dtype + " peak",
            .target = 0.9});
  }

  void ReportSpeedup(const std::string& name, double bf16_rate, double f32_rate) {
    Report({.name = absl::StrCat("gemm/", threads_, "/", name, "/bf16"),
            .value = bf16_rate / 1e9,
            .unit = "GFLOP/s",
            .limit = f32_rate / 1e9,
            .limit_is = "in f32",
            .target = 1.7});
  }

  int threads_;
  IntrusivePtr<MeshContext> context_;
  double peak_f32_;
  double peak_bf16_;  // 0: the processor has no such instruction
};

int Run() {
  WEFT_REQUIRE(absl::GetFlag(FLAGS_threads) >= 1, "--threads=", absl::GetFlag(FLAGS_threads),
               ": expected at least 1");
  const auto body = [](World& world) {
    Measurement measurement(world);
    for (const int64_t tokens : {256, 1024}) measurement.RunTokens(tokens);
  };
  RunRanks(/*num_ranks=*/1, body, {.threads_per_rank = absl::GetFlag(FLAGS_threads)});
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
