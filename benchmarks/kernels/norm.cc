#include "benchmarks/kernels/kernel_bench.h"
#include "ops/normalization/layer_norm.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/normalization/rms_norm.h"
#include "ops/normalization/rms_norm_grad.h"

namespace weft {
namespace {

constexpr int64_t kWidth = 768;

void MeasureLayerNorm(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Shape shape = bench.Rows(dtype, kWidth);
    const Tensor x = bench.Random(dtype, shape);
    const Tensor dy = bench.Random(dtype, shape);
    const Tensor w = bench.Random(dtype, {kWidth});
    const BenchCall forward(kLayerNorm, bench.context(), {x, w, w});
    bench.MeasureBytes("layer_norm/forward" + suffix, forward);
    const BenchCall::Outputs outputs = forward.Run();
    bench.MeasureBytes("layer_norm/backward" + suffix,
                       BenchCall(kLayerNormGrad, bench.context(), {x, w, outputs[1], outputs[2], dy}));
  }
}

void MeasureRmsNorm(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Shape shape = bench.Rows(dtype, kWidth);
    const Tensor x = bench.Random(dtype, shape);
    const Tensor dy = bench.Random(dtype, shape);
    const Tensor w = bench.Random(dtype, {kWidth});
    const BenchCall forward(kRmsNorm, bench.context(), {x, w});
    bench.MeasureBytes("rms_norm/forward" + suffix, forward);
    const BenchCall::Outputs outputs = forward.Run();
    bench.MeasureBytes("rms_norm/backward" + suffix,
                       BenchCall(kRmsNormGrad, bench.context(), {x, w, outputs[1], dy}));
  }
}

const RegisterKernelBench kRegisterLayerNorm("layer_norm", MeasureLayerNorm);
const RegisterKernelBench kRegisterRmsNorm("rms_norm", MeasureRmsNorm);

}  // namespace
}  // namespace weft
