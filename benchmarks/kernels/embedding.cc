#include "ops/indexing/embedding.h"

#include "benchmarks/kernels/kernel_bench.h"

namespace weft {
namespace {

// The rows that tokens pick are of the table's size, so that about two thirds of it are read.
void MeasureEmbedding(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string suffix = dtype == DType::kBF16 ? "/bf16" : "";
    const Shape shape = bench.Rows(dtype, /*columns=*/768);
    const Tensor table = bench.Random(dtype, shape);
    const Tensor tokens = bench.Random(DType::kI64, {shape[0]}, 0, static_cast<double>(shape[0]));
    const BenchCall forward(kEmbedding, bench.context(), {tokens, table});
    bench.MeasureBytes("embedding/forward" + suffix, forward);
    bench.MeasureBytes("embedding/backward" + suffix,
                       BenchCall(kEmbeddingGrad, bench.context(), {tokens, table}, {.vocabulary = shape[0]}));
  }
}

const RegisterKernelBench kRegister("embedding", MeasureEmbedding);

}  // namespace
}  // namespace weft
