#include "ops/elementwise/elementwise.h"

#include "benchmarks/kernels/kernel_bench.h"

namespace weft {
namespace {

constexpr int64_t kColumns = 1024;

void MeasureElementwise(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Shape shape = bench.Rows(dtype, kColumns);
    const Tensor a = bench.Random(dtype, shape);
    const Tensor b = bench.Random(dtype, shape);
    bench.MeasureBytes("add" + suffix, BenchCall(kAdd, bench.context(), {a, b}));
    bench.MeasureBytes("mul" + suffix, BenchCall(kMul, bench.context(), {a, b}));
    const Tensor bias = bench.Random(dtype, {kColumns});
    bench.MeasureBytes("add_bias" + suffix, BenchCall(kAdd, bench.context(), {a, bias}));
  }
}

const RegisterKernelBench kRegister("elementwise", MeasureElementwise);

}  // namespace
}  // namespace weft
