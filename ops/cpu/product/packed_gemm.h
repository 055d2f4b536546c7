#ifndef WEFT_OPS_CPU_PRODUCT_PACKED_GEMM_H_
#define WEFT_OPS_CPU_PRODUCT_PACKED_GEMM_H_

#include <cstdint>

#include "ops/cpu/product/gemm.h"
#include "ops/op/kernel_call.h"

namespace weft {

// Whether PackedGemm takes the product and is the faster: a processor with AVX-512 (bf16: AVX512-BF16), and
// extents that repay packing both operands. Always so in bf16. In f32, measured on two cores at GPT-2's
// shapes, it makes 0.88 to 0.93 of the peak where oneDNN makes 0.76 to 0.89, if b is transposed, or if rows
// of a (transposed), b or c lie a multiple of 4 KiB apart, so that they share few places of the caches (up
// and down of GPT-2); else oneDNN makes 0.93 to 0.95, and keeps the product. Never for double.
template <class T>
bool WantsPackedGemm(const GemmSize& size, const GemmMatrix<T>& a, const GemmMatrix<T>& b, int64_t ldc);

// What a product adds to: c itself (f32), and a bias to every row.
struct GemmSum {
  bool accumulate = false;
  const float* bias = nullptr;  // [n], or null
};

// c = a b, or c += a b, plus a bias, on all threads of the pool: T is float or BFloat16, of which sums are in
// f32 and rounded once. Each operand is packed once for all threads, and each thread takes columns of c, of
// some rows where columns are few.
//
// Weft's own blocks of registers, since oneDNN's product packs an operand for every tile that it is cut into,
// 5 to 15% of a product of 256 rows, and waits for memory while it does; here the columns to come are brought
// into L2 meanwhile. Bits depend on k alone, on neither the threads nor the other extents.
// Source: the order of loops is Goto & van de Geijn's, "Anatomy of high-performance matrix multiplication",
//         2008.
template <class T>
void PackedGemm(KernelContext& context, const GemmSize& size, const GemmMatrix<T>& a, const GemmMatrix<T>& b,
                const GemmSum& sum, T* c, int64_t ldc);

}  // namespace weft

#endif  // WEFT_OPS_CPU_PRODUCT_PACKED_GEMM_H_
