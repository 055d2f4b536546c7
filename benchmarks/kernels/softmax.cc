#include "ops/normalization/softmax.h"

#include "benchmarks/kernels/kernel_bench.h"

namespace weft {
namespace {

void MeasureSoftmax(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Shape shape = bench.Rows(dtype, /*columns=*/1024);
    const Tensor x = bench.Random(dtype, shape, -4, 4);
    const Tensor dy = bench.Random(dtype, shape);
    bench.MeasureBytes("softmax/forward" + suffix, BenchCall(kSoftmax, bench.context(), {x}));
    bench.MeasureBytes("softmax/backward" + suffix, BenchCall(kSoftmaxGrad, bench.context(), {x, dy}));
    bench.MeasureBytes("log_softmax/forward" + suffix, BenchCall(kLogSoftmax, bench.context(), {x}));
    bench.MeasureBytes("log_softmax/backward" + suffix, BenchCall(kLogSoftmaxGrad, bench.context(), {x, dy}));
  }
}

const RegisterKernelBench kRegister("softmax", MeasureSoftmax);

}  // namespace
}  // namespace weft
