#ifndef WEFT_OPS_CPU_PRODUCT_GEMM_H_
#define WEFT_OPS_CPU_PRODUCT_GEMM_H_

#include <algorithm>
#include <cstdint>

#include "ops/product/gemm_size.h"
#include "runtime/base/float16.h"

namespace weft {

// Matrix products by libraries: oneDNN for f32 and bf16, Eigen for f64, which serves verification only. For
// those that packed_gemm.h multiplies faster, contract.cc goes there.
//
// Threads: every call runs on the calling thread. A large product is cut into tiles (GemmTiling), a task
//          each; no sum is cut, and the cut follows from the size alone, so bits do not depend on the number
//          of threads.

// A matrix operand: element (i, j) is data[i * ld + j], or data[j * ld + i] if transposed. Views.
template <class T>
struct GemmMatrix {
  const T* data = nullptr;
  int64_t ld = 1;
  bool transposed = false;

  const T* At(int64_t i, int64_t j) const { return transposed ? data + j * ld + i : data + i * ld + j; }
  GemmMatrix Block(int64_t i, int64_t j) const { return {At(i, j), ld, transposed}; }
};

// c = alpha a b, or c += alpha a b: a [m, k], b [k, n], c [m, n] row-major with ldc elements from row to row.
// T is float or double. An empty sum is 0.
template <class T>
void Gemm(const GemmSize& size, T alpha, const GemmMatrix<T>& a, const GemmMatrix<T>& b, bool accumulate,
          T* c, int64_t ldc);

// c = a b for bf16, summed in f32 and rounded once.
void GemmBF16(const GemmSize& size, const GemmMatrix<BFloat16>& a, const GemmMatrix<BFloat16>& b, BFloat16* c,
              int64_t ldc);

// Whether oneDNN multiplies bf16 on this machine at more than reference speed.
bool HasFastBF16();

// Whether it does so by tiles of registers (AMX), at many times the rate of vectors.
bool HasTileBF16();

// How a product's output is cut into tiles: the largest ones that still occupy several threads and stay in
// cache, nearly of one size, and an even number where there are several.
class GemmTiling {
 public:
  explicit GemmTiling(const GemmSize& size);

  int64_t num_tiles() const { return rows_ * cols_; }
  // Multiply-adds of one whole tile.
  int64_t tile_work() const { return tile_m_ * tile_n_ * size_.k; }

  struct Tile {
    int64_t i, j;  // of its first element
    GemmSize size;
  };
  Tile TileAt(int64_t index) const {
    const int64_t i = index / cols_ * tile_m_;
    const int64_t j = index % cols_ * tile_n_;
    return {i, j, {std::min(tile_m_, size_.m - i), std::min(tile_n_, size_.n - j), size_.k}};
  }

 private:
  GemmSize size_;
  int64_t tile_m_;
  int64_t tile_n_;
  int64_t rows_;
  int64_t cols_;
};

}  // namespace weft

#endif  // WEFT_OPS_CPU_PRODUCT_GEMM_H_
