#include "benchmarks/kernels/kernel_bench.h"
#include "ops/elementwise/cast.h"
#include "ops/shape/reshape.h"

namespace weft {
namespace {

// A permuted view is made dense by reshape, as before a product or a merge of dims.
void MeasureTransposes(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Shape shape = bench.Rows(dtype, /*columns=*/1024);
    const Tensor x = bench.Random(dtype, shape);
    const ReshapeAttributes flat = {{shape.num_elements()}};
    bench.MeasureBytes("transpose" + suffix, BenchCall(kReshape, bench.context(), {x.Permute({1, 0})}, flat));
    // [b, s, h, e] -> [b, h, s, e]
    const Tensor heads = x.Reshape({1, shape[0], 16, 64});
    bench.MeasureBytes("heads" + suffix,
                       BenchCall(kReshape, bench.context(), {heads.Permute({0, 2, 1, 3})}, flat));
  }
}

void MeasureCasts(KernelBench& bench) {
  const Tensor wide = bench.Random(DType::kF32, bench.Rows(DType::kF32, /*columns=*/1024));
  for (const DType half : {DType::kBF16, DType::kF16}) {
    const Tensor narrow = bench.Random(half, wide.shape());
    const std::string name(DTypeName(half));
    bench.MeasureBytes("cast/f32_to_" + name, BenchCall(kCast, bench.context(), {wide}, {.dtype = half}));
    bench.MeasureBytes("cast/" + name + "_to_f32",
                       BenchCall(kCast, bench.context(), {narrow}, {.dtype = DType::kF32}));
  }
}

const RegisterKernelBench kRegisterTransposes("transpose", MeasureTransposes);
const RegisterKernelBench kRegisterCasts("cast", MeasureCasts);

}  // namespace
}  // namespace weft
