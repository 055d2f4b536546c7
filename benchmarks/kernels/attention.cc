#include "ops/attention/attention.h"

#include "absl/strings/str_cat.h"
#include "benchmarks/kernels/kernel_bench.h"

namespace weft {
namespace {

struct AttentionCase {
  const char* name;
  int64_t b, h, s;
  double mebibytes;  // measured with the sizes from here on, up to the next case's
  DeviceType device = DeviceType::kCpu;
};

// GPT-2 at batch 4 x 64 and 1 x 1024, a small GPT, and one long sequence with one head. On a GPU: GPT-2 at
// batch 32, and long sequences.
constexpr AttentionCase kCases[] = {{"b4_h12_s64", 4, 12, 64, 0},
                                    {"b1_h12_s1024", 1, 12, 1024, 1},
                                    {"b16_h6_s256", 16, 6, 256, 1},
                                    {"b1_h1_s4096", 1, 1, 4096, 32},
                                    {"b32_h12_s1024", 32, 12, 1024, 32, DeviceType::kCuda},
                                    {"b2_h12_s8192", 2, 12, 8192, 32, DeviceType::kCuda}};
constexpr int64_t kHeadDim = 64;
constexpr double kTarget = 0.6;

// Whether the case goes with tensors of `num_bytes`: below 1 MiB, from 1 to 32, and above.
bool IsOfSize(const AttentionCase& c, int64_t num_bytes) {
  const double mebibytes = static_cast<double>(num_bytes) * 0x1p-20;
  const double end = c.mebibytes == 0 ? 1 : c.mebibytes == 1 ? 32 : 1e9;
  return mebibytes >= c.mebibytes && mebibytes < end;
}

// Flops are those of the products over the pairs of query and key that the mask leaves, s (s + 1) / 2 of them
// under a causal one: 4 e a pair forward (scores, values) and 10 e backward (the scores again, the gradients
// of probabilities, values, queries and keys). On the CPU the share of f32's peak is shown of bf16 too.
void MeasureCase(KernelBench& bench, const AttentionCase& c, bool causal, DType dtype) {
  // Slices of a packed qkv, as a model's attention gets them.
  const Tensor qkv = bench.Random(dtype, {c.b, c.s, 3, c.h, kHeadDim});
  const std::vector<Tensor> operands = {qkv.Select(2, 0), qkv.Select(2, 1), qkv.Select(2, 2)};
  const Tensor dy = bench.Random(dtype, {c.b, c.s, c.h, kHeadDim});
  const AttentionAttributes attributes = {.causal = causal};
  const int64_t pairs = c.b * c.h * (causal ? c.s * (c.s + 1) / 2 : c.s * c.s);
  const auto flops = static_cast<double>(pairs * kHeadDim);
  const DType peak = bench.device() == DeviceType::kCpu ? DType::kF32 : dtype;
  const std::string suffix =
      absl::StrCat("/", c.name, causal ? "/causal" : "/full", dtype == DType::kBF16 ? "/bf16" : "");
  const BenchCall forward(kAttention, bench.context(), operands, attributes);
  bench.MeasureFlops("attention/forward" + suffix, peak, 4 * flops, kTarget, [&] { forward.Run(); });
  const BenchCall::Outputs outputs = forward.Run();
  const BenchCall backward(kAttentionGrad, bench.context(),
                           {operands[0], operands[1], operands[2], outputs[0], outputs[1], dy}, attributes);
  bench.MeasureFlops("attention/backward" + suffix, peak, 10 * flops, kTarget, [&] { backward.Run(); });
}

void MeasureAttention(KernelBench& bench) {
  for (const AttentionCase& c : kCases) {
    if (c.device != bench.device() || !IsOfSize(c, bench.tensor_bytes())) continue;
    for (const bool causal : {true, false}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) MeasureCase(bench, c, causal, dtype);
    }
  }
}

const RegisterKernelBench kRegister("attention", MeasureAttention);

}  // namespace
}  // namespace weft
