#include "ops/cpu/attention/block_product.h"

#include <algorithm>

// Compiles the part below once for each instruction set, this file included again each time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/block_product.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Sums that stay in registers: 6 rows by 4 vectors of the 32 that AVX-512 has, else 6 by 2 of 16. Each step
// over k then loads 10 vectors for 24 multiply-adds, or 8 for 12.
constexpr int kTileRows = 6;
#if HWY_TARGET <= HWY_AVX3
constexpr int kTileVectors = 4;
#else
constexpr int kTileVectors = 2;
#endif

// One tile's sum over k: kRows rows, kVectors vectors of columns.
// The sums are 24 or 12 chains of multiply-adds that do not wait for each other, more than the latency and
// the number of units ask for. alpha and the old c come after the loop, an instruction per vector.
// An element's sum runs over k in order, in one lane, whatever tile it falls into.
template <class T, bool kTransposed, int kRows, int kVectors>
HWY_NOINLINE void MultiplyTile(const T* HWY_RESTRICT a, int64_t lda, const T* HWY_RESTRICT b, int64_t ldb,
                               int64_t k, const BlockProduct<T>& product, const T* factors, T* HWY_RESTRICT c,
                               int64_t ldc) {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  const D d;
  constexpr int64_t kLanes = HWY_LANES(T);
  V sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sums[i][j] = hn::Zero(d);
  }
  for (int64_t p = 0; p < k; ++p) {
    V right[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) right[j] = hn::LoadU(d, b + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const V left = hn::Set(d, kTransposed ? a[i] : a[i * lda]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sums[i][j] = hn::MulAdd(left, right[j], sums[i][j]);
    }
    a += kTransposed ? lda : 1;
    b += ldb;
  }
  const bool accumulate = product.accumulate;
  const V alpha = hn::Set(d, product.alpha);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    T* const row = c + i * ldc;
    const V factor = hn::Set(d, factors == nullptr ? T(1) : factors[i]);
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      V sum = hn::Mul(sums[i][j], alpha);
      if (accumulate) sum = hn::MulAdd(hn::LoadU(d, row + j * kLanes), factor, sum);
      hn::StoreU(sum, d, row + j * kLanes);
    }
  }
}

// Every shape of tile is a function of its own, its loops unrolled, so that all sums are registers.
template <class T>
using Tile = void (*)(const T*, int64_t, const T*, int64_t, int64_t, const BlockProduct<T>&, const T*, T*,
                      int64_t);

// Tiles of fewer rows are those of 4, 2 and 1, of fewer columns those of every number of vectors.
template <class T, bool kTransposed, int kRows>
Tile<T> SelectVectors(int64_t vectors) {
  if constexpr (kTileVectors == 4) {
    if (vectors >= 4) return MultiplyTile<T, kTransposed, kRows, 4>;
    if (vectors == 3) return MultiplyTile<T, kTransposed, kRows, 3>;
  }
  return vectors >= 2 ? MultiplyTile<T, kTransposed, kRows, 2> : MultiplyTile<T, kTransposed, kRows, 1>;
}

template <class T>
Tile<T> SelectTile(bool transposed, int64_t rows, int64_t vectors) {
  switch (rows) {
    case 6:
      return transposed ? SelectVectors<T, true, 6>(vectors) : SelectVectors<T, false, 6>(vectors);
    case 4:
      return transposed ? SelectVectors<T, true, 4>(vectors) : SelectVectors<T, false, 4>(vectors);
    case 2:
      return transposed ? SelectVectors<T, true, 2>(vectors) : SelectVectors<T, false, 2>(vectors);
    default:
      return transposed ? SelectVectors<T, true, 1>(vectors) : SelectVectors<T, false, 1>(vectors);
  }
}

// Rows of the group that begins `left` rows before the end.
int64_t GroupRows(int64_t left) {
  if (left >= kTileRows) return kTileRows;
  return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

// Scores of a causal mask are a staircase: tiles above it are left out, and sums are cut where probabilities
// are known to be 0.
template <class T>
void MultiplyGroups(const BlockProduct<T>& product, const BlockLeft<T>& a, const BlockRight<T>& b, T* c,
                    int64_t ldc) {
  constexpr int64_t kLanes = HWY_LANES(T);
  // A tile never crosses a panel's border, so its rows of b are ldb apart from the first to the last.
  constexpr int64_t kTileColumns = std::min(kPanelColumns, kTileVectors * kLanes);
  // A tile's columns of b stay in the first cache while the rows go by.
  for (int64_t j = 0; j < product.n; j += kTileColumns) {
    const T* const right = b.data + j / kPanelColumns * b.panel + j % kPanelColumns;
    for (int64_t i = 0; i < product.m;) {
      const int64_t rows = GroupRows(product.m - i);
      const int64_t columns = std::min(product.n, product.columns + i + rows - 1) - j;
      if (columns > 0) {
        const int64_t vectors = (std::min(columns, kTileColumns) + kLanes - 1) / kLanes;
        // A tile's rows share the stretch of k: the first row's begin and the last row's end. Rows between
        // add terms whose left factor is 0.
        const int64_t begin = std::max<int64_t>(0, product.begin + i);
        const int64_t end = std::min(product.k, product.end + i + rows - 1);
        const T* const left = a.data + (a.transposed ? i + begin * a.ld : i * a.ld + begin);
        SelectTile<T>(a.transposed, rows, vectors)(
            left, a.ld, right + begin * b.ld, b.ld, std::max<int64_t>(0, end - begin), product,
            product.row_factors == nullptr ? nullptr : product.row_factors + i, c + i * ldc + j, ldc);
      }
      i += rows;
    }
  }
}

// Rows of b pass once; the sums of one row and the next do not wait for each other.
// Here a lane holds terms of one sum and not a column of c, so that b is read along its rows. The lanes meet
// once per element: of e = 64 that is one reduction for 4 to 16 multiply-adds.
template <class T>
void MultiplyRows(int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
                  T* c, int64_t ldc) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = HWY_LANES(T);
  for (int64_t j = 0; j < n; ++j) {
    const T* const right = b + j * ldb;
    for (int64_t i = 0; i < m; ++i) {
      const T* const left = a + i * lda;
      auto sum = hn::Zero(d);
      for (int64_t p = 0; p < k; p += kLanes) {
        sum = hn::MulAdd(hn::LoadU(d, left + p), hn::LoadU(d, right + p), sum);
      }
      c[i * ldc + j] = alpha * hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
}

void MultiplyRowsF32(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                     const float* b, int64_t ldb, float* c, int64_t ldc) {
  MultiplyRows(m, n, k, alpha, a, lda, b, ldb, c, ldc);
}
void MultiplyRowsF64(int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
                     const double* b, int64_t ldb, double* c, int64_t ldc) {
  MultiplyRows(m, n, k, alpha, a, lda, b, ldb, c, ldc);
}

void MultiplyF32(const BlockProduct<float>& product, const BlockLeft<float>& a, const BlockRight<float>& b,
                 float* c, int64_t ldc) {
  MultiplyGroups(product, a, b, c, ldc);
}
void MultiplyF64(const BlockProduct<double>& product, const BlockLeft<double>& a, const BlockRight<double>& b,
                 double* c, int64_t ldc) {
  MultiplyGroups(product, a, b, c, ldc);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(MultiplyF32);
HWY_EXPORT(MultiplyF64);
HWY_EXPORT(MultiplyRowsF32);
HWY_EXPORT(MultiplyRowsF64);

}  // namespace

template <>
void MultiplyBlocks(const BlockProduct<float>& product, const BlockLeft<float>& a, const BlockRight<float>& b,
                    float* c, int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(MultiplyF32)(product, a, b, c, ldc);
}

template <>
void MultiplyBlocks(const BlockProduct<double>& product, const BlockLeft<double>& a,
                    const BlockRight<double>& b, double* c, int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(MultiplyF64)(product, a, b, c, ldc);
}

template <>
void MultiplyByRows(int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
                    int64_t ldb, float* c, int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(MultiplyRowsF32)(m, n, k, alpha, a, lda, b, ldb, c, ldc);
}

template <>
void MultiplyByRows(int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
                    const double* b, int64_t ldb, double* c, int64_t ldc) {
  HWY_DYNAMIC_DISPATCH(MultiplyRowsF64)(m, n, k, alpha, a, lda, b, ldb, c, ldc);
}

}  // namespace weft
#endif  // HWY_ONCE
