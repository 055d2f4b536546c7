// How close kernels come to the machine: bytes per second over STREAM's triad for those that wait for memory,
// flops per second over the measured peak for those that compute. On a GPU, with --config=cuda: over its own
// copy within its memory, and over its data sheet's peak.
//
//   bazel run //benchmarks/kernels
//   bazel run //benchmarks/kernels -- --only=layer_norm,dropout --sizes=16,64 --threads=1 --log_format=json
//   bazel run --config=cuda //benchmarks/kernels -- --device=cuda
//
// A kernel is called as an op of one rank calls it: outputs come from the rank's pool and go back. Its bytes
// are those that it cannot do without: each operand read once, each output written once, whatever the kernel
// does; lines read only because they are about to be overwritten count in neither kernel nor triad. The
// triad is measured at the same footprint and number of threads, since caches serve both. The target, 0.85,
// holds for tensors of 16 MiB and more; the small size, which caches hold, shows what the instructions cost.
//
// Families stand beside this file, a file each, and register themselves.

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "benchmarks/kernels/kernel_bench.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "runtime/device/device_backend.h"

ABSL_FLAG(std::vector<std::string>, only, {}, "families to measure (default: all)");
ABSL_FLAG(std::string, device, "cpu", "where kernels run: cpu, cuda or auto");
ABSL_FLAG(std::vector<std::string>, sizes, {},
          "MiB of each large tensor (default: 0.125, 16 and 64; on a GPU 256)");
ABSL_FLAG(std::vector<std::string>, threads, {}, "numbers of threads (default: 1 and 2; on a GPU 1)");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Measures kernels against what the machine's memory and arithmetic do at best.",
          .groups = {{"Measurement", {"device", "only", "sizes", "threads", "log_format"}}},
          .examples = {"kernels", "kernels --only=softmax,gelu --sizes=16 --threads=1",
                       "kernels --device=cuda --only=adamw"}};
}

// The families of --only.
// Errors: InvalidArgument for a name that there is not.
std::vector<NamedKernelBench> Wanted() {
  const std::vector<NamedKernelBench> all = KernelBenches();
  const std::vector<std::string> only = absl::GetFlag(FLAGS_only);
  if (only.empty()) return all;
  std::vector<NamedKernelBench> wanted;
  for (const std::string& name : only) {
    const auto found =
        absl::c_find_if(all, [&](const NamedKernelBench& bench) { return bench.name == name; });
    WEFT_REQUIRE(found != all.end(), "--only: no family '", name, "'; there are ",
                 absl::StrJoin(all, ", ", [](std::string* out, const NamedKernelBench& bench) {
                   out->append(bench.name.data(), bench.name.size());
                 }));
    wanted.push_back(*found);
  }
  return wanted;
}

std::vector<std::string> OrDefault(std::vector<std::string> given, std::vector<std::string> otherwise) {
  return given.empty() ? otherwise : given;
}

int Run() {
  const std::vector<NamedKernelBench> wanted = Wanted();
  const DeviceType device = ParseDevice(absl::GetFlag(FLAGS_device));
  const bool on_cpu = device == DeviceType::kCpu;
  const auto sizes =
      OrDefault(absl::GetFlag(FLAGS_sizes),
                on_cpu ? std::vector<std::string>{"0.125", "16", "64"} : std::vector<std::string>{"256"});
  const auto thread_counts =
      OrDefault(absl::GetFlag(FLAGS_threads),
                on_cpu ? std::vector<std::string>{"1", "2"} : std::vector<std::string>{"1"});
  KnownLimits limits(device);
  for (const std::string& threads_text : thread_counts) {
    int threads = 0;
    WEFT_REQUIRE(absl::SimpleAtoi(threads_text, &threads) && threads > 0, "--threads: got '", threads_text,
                 "'");
    for (const std::string& size_text : sizes) {
      double mebibytes = 0;
      WEFT_REQUIRE(absl::SimpleAtod(size_text, &mebibytes) && mebibytes > 0, "--sizes: got '", size_text,
                   "'");
      for (const NamedKernelBench& bench : wanted) {
        // A rank's pools of its own, so that no family finds the blocks of another.
        KernelBench on(static_cast<int64_t>(mebibytes * 0x1p20), threads, limits);
        bench.family(on);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
