#include "ops/creation/random.h"

#include "benchmarks/kernels/kernel_bench.h"

namespace weft {
namespace {

constexpr RandomKey kKey = {.seed = 1, .stream = 2, .step = 3};

void MeasureDropout(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Tensor x = bench.Random(dtype, bench.Rows(dtype, /*columns=*/768));
    bench.MeasureBytes("dropout" + suffix,
                       BenchCall(kDropout, bench.context(), {x}, {}, {.key = kKey, .rate = 0.1}));
  }
}

void MeasureRandom(KernelBench& bench) {
  const CreationAttributes type = {.shape = bench.Rows(DType::kF32, /*columns=*/768)};
  bench.MeasureBytes("random_uniform",
                     BenchCall(kRandomUniform, bench.context(), {}, type, {.key = kKey, .low = -1}));
  bench.MeasureBytes("random_normal",
                     BenchCall(kRandomNormal, bench.context(), {}, type, {.key = kKey, .stddev = 0.02}));
}

const RegisterKernelBench kRegisterDropout("dropout", MeasureDropout);
const RegisterKernelBench kRegisterRandom("random", MeasureRandom);

}  // namespace
}  // namespace weft
