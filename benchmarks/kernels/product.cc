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

// The products of a layer of GPT-2's feed-forward part, [rows, 768] and [rows, 3072] of the size: forward, and the gradient
// of the weight, without the sum of dy's rows and with it.
void MeasureLayerProducts(KernelBench& bench) {
  constexpr int64_t kWidth = 768;
  constexpr int64_t kInner = 4 * kWidth;
  const Shape inner = bench.Rows(DType::kBF16, kInner);
  const Shape outer = {inner[0], kWidth};
  const Tensor x = bench.Random(DType::kBF16, outer);
  const Tensor dy = bench.Random(DType::kBF16, inner);
  const double flops = 2.0 * static_cast<double>(outer.num_elements()) * static_cast<double>(kInner);
  const auto measure = [&](const char* name, const BenchCall& call) {
    bench.MeasureFlops(absl::StrCat("product/", name, "/bf16/768x3072"), DType::kBF16, flops, kTarget,
                       [&] { call.Run(); });
  };
  measure("up", BenchCall(kContract, bench.context(), {x, bench.Random(DType::kBF16, {kWidth, kInner})},
                          {"mk", "kn", "mn"}));
  measure("input_grad", BenchCall(kContract, bench.context(),
                                  {dy, bench.Random(DType::kBF16, {kWidth, kInner})}, {"mn", "kn", "mk"}));
  const ContractAttributes labels = {"mk", "mn", "kn"};
  measure("weight_grad", BenchCall(kContract, bench.context(), {x, dy}, labels));
  measure("weight_and_bias_grad", BenchCall(kLinearWeightGrad, bench.context(), {x, dy}, {labels, 1}));
}

const RegisterKernelBench kRegister("product", MeasureProducts);
const RegisterKernelBench kRegisterLayer("layer_product", MeasureLayerProducts);

}  // namespace
}  // namespace weft
