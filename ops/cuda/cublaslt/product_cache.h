#ifndef WEFT_OPS_CUDA_CUBLASLT_PRODUCT_CACHE_H_
#define WEFT_OPS_CUDA_CUBLASLT_PRODUCT_CACHE_H_

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "ops/cuda/product/gemm.h"

namespace weft {

// Throws unless `status` is CUBLAS_STATUS_SUCCESS; `call` names what returned it, `gemm` the product.
// Errors: ResourceExhausted for CUBLAS_STATUS_ALLOC_FAILED; Internal for others.
void CheckCublas(cublasStatus_t status, const char* call, const CudaGemm& gemm);

// All of a product that is not an address, and the alignment of its addresses: what an algorithm depends on.
struct ProductKey {
  CudaGemm gemm;  // its addresses, alpha and beta are null and 0 or 1
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int a_alignment = 16;  // in bytes, at most 16
  int b_alignment = 16;
  int c_alignment = 16;  // of what the epilogue reads or writes too

  static ProductKey Of(const CudaGemm& gemm);

  bool operator==(const ProductKey& other) const;
  template <class H>
  friend H AbslHashValue(H state, const ProductKey& key) {
    const CudaGemm& g = key.gemm;
    return H::combine(std::move(state), g.dtype, g.m, g.n, g.k, g.batch, g.a.ld, g.a.transposed,
                      g.a.batch_stride, g.b.ld, g.b.transposed, g.b.batch_stride, g.ldc, g.c_batch_stride,
                      g.beta != 0, g.allow_tf32, key.epilogue, key.a_alignment, key.b_alignment,
                      key.c_alignment);
  }
};

// A product as cuBLASLt is to compute it. Owns its descriptors.
class PlannedProduct {
 public:
  // `gemm` with its addresses, whose alignment the choice depends on.
  // Errors: Internal if cuBLASLt has no algorithm for it, unless it has a gelu_input or b_sums.
  PlannedProduct(cublasLtHandle_t handle, const CudaGemm& gemm);
  ~PlannedProduct();
  PlannedProduct(const PlannedProduct&) = delete;
  PlannedProduct& operator=(const PlannedProduct&) = delete;

  // Whether cuBLASLt has an algorithm.
  bool exists() const { return exists_; }
  int64_t workspace_bytes() const { return static_cast<int64_t>(choice_.workspaceSize); }

  // `workspace`: of so many bytes, at a multiple of 256. Requires exists().
  void Run(cublasLtHandle_t handle, const CudaGemm& gemm, void* workspace, cudaStream_t stream) const;

 private:
  void Describe(const CudaGemm& gemm);
  void PointEpilogue(const CudaGemm& gemm) const;
  void Choose(cublasLtHandle_t handle, const ProductKey& key);
  void Destroy();

  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr;   // cuBLASLt's matrices are column-major: ours, transposed, so its
  cublasLtMatrixLayout_t right_ = nullptr;  // left operand is our b
  cublasLtMatrixLayout_t result_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_ = {};
  bool exists_ = false;
};

// A rank's handle and products, made by the rank when it first multiplies.
class ProductCache {
 public:
  ProductCache();
  ~ProductCache();
  ProductCache(const ProductCache&) = delete;
  ProductCache& operator=(const ProductCache&) = delete;

  cublasLtHandle_t handle() const { return handle_; }

  // The plan for such a product, made when there is none.
  const PlannedProduct& Find(const CudaGemm& gemm);

  // Whether cuBLASLt has it, and with gelu_input or b_sums is to do it.
  bool Has(const CudaGemm& gemm);

 private:
  // Far more than a model has; programs whose shapes never repeat start anew.
  static constexpr size_t kMostProducts = 4096;

  cublasLtHandle_t handle_ = nullptr;
  int generation_ = 0;  // of the GPU: 9 for sm_90
  absl::flat_hash_map<ProductKey, std::unique_ptr<PlannedProduct>> products_;
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_CUBLASLT_PRODUCT_CACHE_H_
