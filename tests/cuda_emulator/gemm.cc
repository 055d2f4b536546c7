#include "ops/cuda/gemm.h"

#include <cuda_runtime.h>

#include "ops/cuda/kernel_stream.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

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
    T& c = static_cast<T*>(gemm.c)[z * gemm.c_batch_stride + i * gemm.ldc + j];
    sum *= static_cast<C>(gemm.alpha);
    if (gemm.beta != 0) sum += static_cast<C>(gemm.beta) * static_cast<C>(c);
    if (gemm.bias != nullptr) sum += static_cast<C>(static_cast<const T*>(gemm.bias)[j]);
    c = ConvertElement<T>(sum);
  });
}

}  // namespace

void RunCudaGemm(const std::shared_ptr<Allocator>& allocator, const CudaGemm& gemm) {
  WEFT_CHECK(gemm.m > 0 && gemm.n > 0 && gemm.k > 0 && gemm.batch > 0, "an empty product");
  WEFT_CHECK(gemm.bias == nullptr || gemm.dtype != DType::kF64, "a product of f64 with a bias");
  VisitFloating(gemm.dtype, "gemm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    LaunchCuda(AsCudaAllocator(*allocator).stream(), GridOver(gemm.batch * gemm.m * gemm.n), GemmKernel<T, C>,
               gemm);
  });
}

}  // namespace weft
