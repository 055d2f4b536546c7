#ifndef WEFT_OPS_CPU_PACKED_GEMM_H_
#define WEFT_OPS_CPU_PACKED_GEMM_H_

#include <cstdint>

#include "ops/cpu/gemm.h"
#include "ops/kernel_call.h"

namespace weft {

// Whether PackedGemm takes the product and is the faster: a processor with AVX-512 (bf16: AVX512-BF16), and
// extents that repay packing both operands. Measured on one core at GPT-2's shapes, it makes 197 to 223
// GFLOP/s in bf16 where oneDNN makes 179 to 211, and in f32 102 to 106 where oneDNN makes 94 to 104 if b is
// transposed; else oneDNN's f32 is as fast or faster, and keeps the product.
template <class T>
bool WantsPackedGemm(const GemmSize& size, bool b_transposed);

// c = a b, or c += a b (f32), on all threads of the pool: T is float or BFloat16, of which sums are in f32
// and rounded once. Each operand is packed once for all threads, and each thread takes columns of c.
//
// Weft's own blocks of registers, since oneDNN's product packs an operand for every tile that it is cut into,
// 5 to 15% of a product of 256 rows, and waits for memory while it does; here the columns to come are brought
// into L2 meanwhile. Bits depend on k alone, on neither the threads nor the other extents.
// Source: the order of loops is Goto & van de Geijn's, "Anatomy of high-performance matrix multiplication",
// 2008.
template <class T>
void PackedGemm(KernelContext& context, const GemmSize& size, const GemmMatrix<T>& a, const GemmMatrix<T>& b,
                bool accumulate, T* c, int64_t ldc);

}  // namespace weft

#endif  // WEFT_OPS_CPU_PACKED_GEMM_H_
