#include "ops/cuda/product/gemm.h"

#include <algorithm>
#include <limits>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/cublaslt/product_cache.h"
#include "runtime/base/error.h"
#include "runtime/tensor/tensor.h"

namespace weft {
namespace {

// Of cuBLASLt's workspace.
constexpr int64_t kAlignment = 256;

void* AlignedData(const Tensor& workspace) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(workspace.data());
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

// A plan is found for each part: the last of a long batch has another count, which plans depend on.
void RunBatch(ProductCache& products, const std::shared_ptr<Allocator>& allocator, const CudaGemm& gemm) {
  const PlannedProduct& product = products.Find(gemm);
  WEFT_CHECK(product.exists(), "a product that cuBLASLt lacks");
  const int64_t bytes = product.workspace_bytes();
  // The next owner of its memory uses it later in the same stream.
  const Tensor workspace =
      bytes == 0 ? Tensor() : Tensor::Empty(allocator, DType::kU8, {bytes + kAlignment - 1});
  product.Run(products.handle(), gemm, bytes == 0 ? nullptr : AlignedData(workspace),
              AsCudaAllocator(*allocator).stream().handle());
}

}  // namespace

bool HasCudaGemm(const std::shared_ptr<Allocator>& allocator, const CudaGemm& gemm) {
  return AsCudaAllocator(*allocator).rank_state().Get<ProductCache>().Has(gemm);
}

void RunCudaGemm(const std::shared_ptr<Allocator>& allocator, const CudaGemm& gemm) {
  WEFT_CHECK(gemm.m > 0 && gemm.n > 0 && gemm.k > 0 && gemm.batch > 0, "an empty product");
  WEFT_CHECK(gemm.bias == nullptr || gemm.dtype != DType::kF64, "a product of f64 with a bias");
  const bool is_fused = gemm.gelu_input != nullptr || gemm.b_sums != nullptr;
  WEFT_CHECK(!is_fused || (gemm.batch == 1 && gemm.beta == 0 && gemm.bias == nullptr),
             "gelu's gradient or sums of columns, of a batch, a sum or with a bias");
  // A batch goes over the grid's third dim in some of the library's kernels.
  constexpr int64_t kMostBatches = 65535;
  ProductCache& products = AsCudaAllocator(*allocator).rank_state().Get<ProductCache>();
  const int64_t item = ItemSize(gemm.dtype);
  for (int64_t first = 0; first < gemm.batch; first += kMostBatches) {
    CudaGemm part = gemm;
    const auto move = [&](const void* data, int64_t stride) {
      return static_cast<const char*>(data) + first * stride * item;
    };
    part.batch = std::min(kMostBatches, gemm.batch - first);
    part.a.data = move(gemm.a.data, gemm.a.batch_stride);
    part.b.data = move(gemm.b.data, gemm.b.batch_stride);
    part.c = static_cast<char*>(gemm.c) + first * gemm.c_batch_stride * item;
    RunBatch(products, allocator, part);
  }
}

}  // namespace weft
