#include "benchmarks/kernels/kernel_bench.h"
#include "ops/elementwise/elementwise.h"

namespace weft {
namespace {

void MeasureGelu(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Shape shape = bench.Rows(dtype, /*columns=*/3072);
    const Tensor x = bench.Random(dtype, shape, -3, 3);
    const Tensor dy = bench.Random(dtype, shape);
    for (const bool exact : {false, true}) {
      const std::string name = exact ? "gelu_erf" : "gelu_tanh";
      const GeluAttributes attributes = {.exact = exact};
      bench.MeasureBytes(name + "/forward" + suffix, BenchCall(kGelu, bench.context(), {x}, attributes));
      bench.MeasureBytes(name + "/backward" + suffix,
                         BenchCall(kGeluGrad, bench.context(), {x, dy}, attributes));
    }
  }
}

const RegisterKernelBench kRegister("gelu", MeasureGelu);

}  // namespace
}  // namespace weft
