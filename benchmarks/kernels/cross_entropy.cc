#include "ops/normalization/cross_entropy.h"

#include "benchmarks/kernels/kernel_bench.h"

namespace weft {
namespace {

// GPT-2's vocabulary, padded.
constexpr int64_t kClasses = 50304;

void MeasureCrossEntropy(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Shape shape = bench.Rows(dtype, kClasses);
    const Tensor logits = bench.Random(dtype, shape, -4, 4);
    const Tensor targets = bench.Random(DType::kI64, {shape[0]}, 0, kClasses);
    const BenchCall forward(kCrossEntropy, bench.context(), {logits, targets});
    bench.MeasureBytes("cross_entropy/forward" + suffix, forward);
    const BenchCall::Outputs outputs = forward.Run();
    bench.MeasureBytes(
        "cross_entropy/backward" + suffix,
        BenchCall(kCrossEntropyGrad, bench.context(), {logits, targets, outputs[2], outputs[0]}));
  }
}

const RegisterKernelBench kRegister("cross_entropy", MeasureCrossEntropy);

}  // namespace
}  // namespace weft
