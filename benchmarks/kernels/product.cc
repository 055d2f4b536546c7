#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "benchmarks/kernels/kernel_bench.h"
#include "ops/product/contract.h"

namespace weft {
namespace {

constexpr double kTarget = 0.7;

// A square product, of the matrices that three tensors of the size hold.
void MeasureProducts(KernelBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const int64_t n = static_cast<int64_t>(std::sqrt(bench.tensor_bytes() / ItemSize(dtype))) / 128 * 128;
    if (n == 0) continue;
    const BenchCall call(kContract, bench.context(),
                         {bench.Random(dtype, {n, n}), bench.Random(dtype, {n, n})}, {"mk", "kn", "mn"});
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    bench.MeasureFlops(absl::StrCat("product/", DTypeName(dtype), "/", n), dtype, flops, kTarget,
                       [&] { call.Run(); });
  }
}

const RegisterKernelBench kRegister("product", MeasureProducts);

}  // namespace
}  // namespace weft
