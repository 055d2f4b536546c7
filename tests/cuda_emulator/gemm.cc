#include "ops/cuda/product/gemm.h"

#include <cuda_runtime.h>

#include <atomic>
#include <cmath>

#include "ops/cuda/blocks/kernel_stream.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/cuda/grid_loop.h"
#include "tests/cuda_emulator/gemm_count.h"

namespace weft {
namespace {

std::atomic<int64_t> num_made = 0;
std::atomic<int64_t> num_fused = 0;

// The derivative of gelu by tanh, from its definition; beyond the limits it is 0 or 1 to double.
double GeluDerivative(double x) {
  constexpr double kRoot = 0.79788456080286535588;  // of 2 / pi
  constexpr double kCubic = 0.044715;
  constexpr double kLimit = 30;
  if (std::abs(x) > kLimit) return x < 0 ? 0 : 1;
  const double t = std::tanh(kRoot * (x + kCubic * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * kRoot * (1 + 3 * kCubic * x * x);
}

template <class T, class C>
__global__ void GemmKernel(CudaGemm gemm) {
  const int64_t count = gemm.batch * gemm.m * gemm.n;
  ForEachOfGrid(count, [&](int64_t index) {
    const int64_t j = index % gemm.n;
    const int64_t i = index / gemm.n % gemm.m;
    const int64_t z = index / gemm.n / gemm.m;
    const auto element = [z](const CudaGemmOperand& matrix, int64_t row, int64_t column) {
      const T* const data = static_cast<const T*>(matrix.data) + z * matrix.batch_stride;
      return static_cast<C>(matrix.transposed ? data[column * matrix.ld + row]
                                              : data[row * matrix.ld + column]);
    };
    C sum = 0;
    for (int64_t k = 0; k < gemm.k; ++k) sum += element(gemm.a, i, k) * element(gemm.b, k, j);
    if (gemm.b_sums != nullptr && i == 0) {
      C column = 0;
      for (int64_t k = 0; k < gemm.k; ++k) column += element(gemm.b, k, j);
      static_cast<T*>(gemm.b_sums)[j] = ConvertElement<T>(column);
    }
    T& c = static_cast<T*>(gemm.c)[z * gemm.c_batch_stride + i * gemm.ldc + j];
    sum *= static_cast<C>(gemm.alpha);
    if (gemm.beta != 0) sum += static_cast<C>(gemm.beta) * static_cast<C>(c);
    if (gemm.bias != nullptr) sum += static_cast<C>(static_cast<const T*>(gemm.bias)[j]);
    if (gemm.gelu_input != nullptr) {
      const T h = static_cast<const T*>(gemm.gelu_input)[i * gemm.ldc + j];
      sum *= static_cast<C>(GeluDerivative(static_cast<double>(static_cast<C>(h))));
    }
    c = ConvertElement<T>(sum);
  });
}

}  // namespace

int64_t NumGemms() { return num_made; }
int64_t NumFusedGemms() { return num_fused; }

// As cuBLASLt says of itself, where this says no; sums of columns in threes are left to the caller, so that
// both ways run.
bool HasCudaGemm(const std::shared_ptr<Allocator>&, const CudaGemm& gemm) {
  if (gemm.dtype == DType::kF64) return false;
  if (gemm.gelu_input != nullptr) return gemm.ldc % 8 == 0;
  return gemm.b_sums == nullptr || gemm.n % 3 != 0;
}

void RunCudaGemm(const std::shared_ptr<Allocator>& allocator, const CudaGemm& gemm) {
  WEFT_CHECK(gemm.m > 0 && gemm.n > 0 && gemm.k > 0 && gemm.batch > 0, "an empty product");
  WEFT_CHECK(gemm.bias == nullptr || gemm.dtype != DType::kF64, "a product of f64 with a bias");
  const bool is_fused = gemm.gelu_input != nullptr || gemm.b_sums != nullptr;
  WEFT_CHECK(!is_fused ||
                 (gemm.batch == 1 && gemm.beta == 0 && gemm.bias == nullptr && HasCudaGemm(allocator, gemm)),
             "a product that the library lacks");
  ++num_made;
  num_fused += is_fused ? 1 : 0;
  VisitFloating(gemm.dtype, "gemm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    LaunchCuda(AsCudaAllocator(*allocator).stream(), GridOver(gemm.batch * gemm.m * gemm.n), GemmKernel<T, C>,
               gemm);
  });
}

}  // namespace weft
