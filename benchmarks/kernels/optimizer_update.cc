#include "ops/optimizer/optimizer_update.h"

#include "benchmarks/kernels/kernel_bench.h"

namespace weft {
namespace {

void MeasureAdamW(KernelBench& bench) {
  const Shape shape = bench.Rows(DType::kF32, /*columns=*/768);
  const Tensor p = bench.Random(DType::kF32, shape);
  const Tensor m = bench.Random(DType::kF32, shape);
  const Tensor v = bench.Random(DType::kF32, shape, 0.5, 1);
  const Tensor g = bench.Random(DType::kF32, shape);
  const Tensor clip = bench.Random(DType::kF32, {}, 1, 1);
  const Tensor rates = bench.Random(DType::kF64, {2}, 1, 1);
  const AdamWScalars scalars = {.lr = 1e-3};
  bench.MeasureBytes("adamw",
                     BenchCall(kAdamWUpdate, bench.context(), {p, m, v, g, clip, rates}, {}, scalars));
  bench.MeasureBytes("accumulate", BenchCall(kAccumulate, bench.context(), {p, g}));
}

const RegisterKernelBench kRegister("adamw", MeasureAdamW);

}  // namespace
}  // namespace weft
