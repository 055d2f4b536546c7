#include "ops/reduce/reduce.h"

#include "benchmarks/kernels/kernel_bench.h"

namespace weft {
namespace {

void MeasureSums(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Tensor x = bench.Random(dtype, bench.Rows(dtype, /*columns=*/1024));
    for (const auto& [name, dims] : {std::pair("sum/all", 3), {"sum/rows", 2}, {"sum/columns", 1}}) {
      bench.MeasureBytes(name + suffix,
                         BenchCall(kSum, bench.context(), {x}, {.dims = static_cast<DimMask>(dims)}));
    }
    bench.MeasureBytes("sum_squares" + suffix, BenchCall(kSumSquares, bench.context(), {x}));
  }
}

const RegisterKernelBench kRegister("sum", MeasureSums);

}  // namespace
}  // namespace weft
