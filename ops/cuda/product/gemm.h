#ifndef WEFT_OPS_CUDA_PRODUCT_GEMM_H_
#define WEFT_OPS_CUDA_PRODUCT_GEMM_H_

#include <cstdint>
#include <memory>

#include "runtime/base/dtype.h"
#include "runtime/device/allocator.h"

namespace weft {

// Element (i, j) is data[i * ld + j], or data[j * ld + i] if transposed; batch element z begins z *
// batch_stride elements further on. A view. `ld` is at least the extent that has stride 1.
struct CudaGemmOperand {
  const void* data = nullptr;
  int64_t ld = 1;
  bool transposed = false;
  int64_t batch_stride = 0;  // 0: the same matrix for all
};

// c = alpha a b + beta c + bias, for each of a batch: plain numbers. At most one of bias, gelu_input and
// b_sums is given; with the last two, batch is 1 and beta 0.
struct CudaGemm {
  DType dtype = DType::kF32;  // of all matrices and vectors: floating
  int64_t m = 0;              // all of m, n, k and batch are at least 1
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  CudaGemmOperand a;  // [m, k]
  CudaGemmOperand b;  // [k, n]
  void* c = nullptr;  // [m, n], rows ldc apart
  int64_t ldc = 1;
  int64_t c_batch_stride = 0;
  double alpha = 1;
  double beta = 0;
  const void* bias = nullptr;  // [n], the same for every row, or null; not in f64
  // As c lies, or null: c = alpha a b times the derivative of gelu, by tanh, at gelu_input.
  const void* gelu_input = nullptr;
  // [n], or null: what the sums of b's columns are written to.
  void* b_sums = nullptr;
  bool allow_tf32 = false;  // of f32 alone: operands rounded to 11 significant bits
};

// Whether the library has this product with its gelu_input or b_sums, and with it is the faster way.
bool HasCudaGemm(const std::shared_ptr<Allocator>& allocator, const CudaGemm& gemm);

// Issues the product to the stream of `allocator`, a CudaAllocator, which gives workspace too. Halves are
// summed in f32 and rounded once. The bits depend on the extents, strides, alignment up to 16 bytes and the
// GPU's model alone.
//
// With gelu_input or b_sums only where HasCudaGemm.
//
// Implemented in ops/cuda/cublaslt by cuBLASLt, and in tests/cuda_emulator by plain loops.
// Errors: Internal naming the call that failed and the product; ResourceExhausted.
void RunCudaGemm(const std::shared_ptr<Allocator>& allocator, const CudaGemm& gemm);

}  // namespace weft

#endif  // WEFT_OPS_CUDA_PRODUCT_GEMM_H_
