#ifndef WEFT_OPS_CPU_ATTENTION_BLOCK_PRODUCT_H_
#define WEFT_OPS_CPU_ATTENTION_BLOCK_PRODUCT_H_

#include <cstdint>
#include <limits>

namespace weft {

// Products of blocks that caches hold, of f32 and f64, by the widest vectors of the machine: what attention
// multiplies, where a library call costs as much as the product and half of the scores are hidden.

// Rows of blocks are padded to this many elements (64 bytes of f32), so that vectors need no tails.
inline constexpr int64_t kBlockLanes = 16;
constexpr int64_t RoundUpToLanes(int64_t n) { return (n + kBlockLanes - 1) / kBlockLanes * kBlockLanes; }

// The right operand's columns come in panels of this many.
inline constexpr int64_t kPanelColumns = 64;

// Element (i, p) of the left operand is data[i * ld + p], or data[p * ld + i] if transposed. A view.
template <class T>
struct BlockLeft {
  const T* data = nullptr;
  int64_t ld = 0;
  bool transposed = false;
};

// Element (p, j) of the right operand is data[j / 64 * panel + p * ld + j % 64]: row-major with panel = 64,
// or panels one after the other. Its rows can be read up to RoundUpToLanes(n). A view.
template <class T>
struct BlockRight {
  const T* data = nullptr;
  int64_t ld = 0;
  int64_t panel = kPanelColumns;
};

// c = alpha a b, or c = row_factors c + alpha a b, of which a staircase is needed or known to be other than
// 0. With the defaults, all of it.
template <class T>
struct BlockProduct {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  T alpha = 1;
  bool accumulate = false;
  const T* row_factors = nullptr;  // [m], with accumulate; null: 1

  static constexpr int64_t kNoStairs = std::numeric_limits<int64_t>::max() / 2;
  // Row i needs its first columns + i columns, sums over its first end + i and not over its first begin + i.
  int64_t columns = kNoStairs;
  int64_t begin = -kNoStairs;
  int64_t end = kNoStairs;
};

// c is row-major with rows ldc apart that hold RoundUpToLanes(n) elements; what lies beyond n, or beyond a
// row's columns, is undefined afterwards. Rows go in small groups by their number alone, so the bits of c do
// not depend on the caller's threads. A sum of nothing is 0.
template <class T>
void MultiplyBlocks(const BlockProduct<T>& product, const BlockLeft<T>& a, const BlockRight<T>& b, T* c,
                    int64_t ldc);

// c [m, n] = alpha a [m, k] b^T of row-major b [n, k]: for few rows m, which would not repay a transposed b.
// Rows of a and b hold RoundUpToLanes(k) elements, 0 beyond k.
template <class T>
void MultiplyByRows(int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                    int64_t ldb, T* c, int64_t ldc);

}  // namespace weft

#endif  // WEFT_OPS_CPU_ATTENTION_BLOCK_PRODUCT_H_
