#include "ops/cpu/product/gemm_panels.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "runtime/base/error.h"

#if defined(__x86_64__)
// GCC 12 takes the header's own undefined vectors for a mistake at -O1.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace weft {

#if defined(__x86_64__)
namespace {

// Highway 1.0 knows no products of bf16 pairs, so these are intrinsics, each function for the instructions it
// needs. f32 runs without the last set, of which the compiler makes no use by itself.
#define WEFT_AVX512 gnu::target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

constexpr int64_t kLanes = 16;
// Units that are multiplied between two lines of what comes next.
constexpr int64_t kUnitsALine = 4;

constexpr int64_t CeilToPanel(int64_t cols) { return (cols + kPanelCols - 1) / kPanelCols * kPanelCols; }

// For the lines that this very loop reads next, hence into the first cache; what a later task reads is
// fetched into the second one.
inline void Prefetch(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T0); }

// The lowest `n` of 16 lanes.
// Masks instead of loops over the rest: a masked load touches no page beyond the operand, a masked store no
// element beyond c, and the last columns cost what the others do.
[[WEFT_AVX512]] __mmask16 First(int64_t n) { return static_cast<__mmask16>((1u << std::min(n, kLanes)) - 1); }

// 16 units from `from`, of which `elements` of T are there; 0 beyond.
template <class T>
[[WEFT_AVX512]] inline __m512i LoadUnits(const T* from, int64_t elements) {
  constexpr int64_t kHalves = sizeof(T) / 2;  // 16-bit words of an element
  const int64_t words = std::min<int64_t>(elements * kHalves, 2 * kLanes);
  const auto mask = static_cast<__mmask32>((uint64_t{1} << words) - 1);
  return _mm512_maskz_loadu_epi16(mask, from);
}

// r[i] lane j becomes r[j] lane i.
// Three rounds of interleaving, by 32, 64 and 128 bits: 64 shuffles for 256 units that stay in registers,
// where single elements would be 256 stores, each to a line of its own.
[[WEFT_AVX512]] inline void Transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Blocks of four lanes: r[4 g + c] holds columns c, c + 4, c + 8, c + 12 of rows 4 g to 4 g + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
    const __m512i low23 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
    t[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[c + 4] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[c + 8] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    t[c + 12] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Lines of the source run along k: unit u of line i goes to panel[u * stride + i], 0 for lines up to 16.
// Whole vectors are written, in order, so that what one writes beyond its lines the next overwrites.
template <class T>
[[WEFT_AVX512]] void PackAlong(const T* from, int64_t ld, int64_t lines, int64_t k, int64_t stride,
                               float* panel) {
  constexpr int64_t kElements = 4 / sizeof(T);
  const int64_t units = UnitsOf<T>(k);
  for (int64_t u = 0; u < units; u += kLanes) {
    __m512i r[16];
    for (int64_t i = 0; i < 16; ++i) {
      r[i] = i < lines ? LoadUnits(from + i * ld + u * kElements, k - u * kElements) : _mm512_setzero_si512();
    }
    Transpose(r);
    const int64_t count = std::min(kLanes, units - u);
    if (count == kLanes) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) _mm512_storeu_si512(panel + (u + i) * stride, r[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) _mm512_storeu_si512(panel + (u + i) * stride, r[i]);
    }
  }
}

// Lines of the source run across k: 16 elements of line p, `count` of which are there.
// A pair of bf16 that follow one another along k is what the instruction for pairs multiplies. Where lines
// run along k it is 32 bits as they lie; here two lines are merged into it.
[[WEFT_AVX512]] inline __m512i LoadAcross(const float* from, int64_t ld, int64_t unit, int64_t /*k*/,
                                          int64_t count) {
  return _mm512_castps_si512(_mm512_maskz_loadu_ps(First(count), from + unit * ld));
}
[[WEFT_AVX512]] inline __m512i LoadAcross(const BFloat16* from, int64_t ld, int64_t unit, int64_t k,
                                          int64_t count) {
  const BFloat16* const line = from + 2 * unit * ld;
  const __m256i low = _mm256_maskz_loadu_epi16(First(count), line);
  const __mmask16 next = 2 * unit + 1 < k ? First(count) : static_cast<__mmask16>(0);
  const __m256i high = _mm256_maskz_loadu_epi16(next, next != 0 ? line + ld : line);
  return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
}

// As PackAlong, for lines across k, one vector of each.
template <class T>
[[WEFT_AVX512]] void PackAcross(const T* from, int64_t ld, int64_t k, int64_t count, int64_t stride,
                                float* panel) {
  const int64_t units = UnitsOf<T>(k);
  for (int64_t u = 0; u < units; ++u) {
    _mm512_storeu_si512(panel + u * stride, LoadAcross(from, ld, u, k, count));
  }
}

// Column panels from lines across k. Line by line, since neighbours on a line share pages, and lines ahead
// are asked for: they are too far apart for the processor to guess.
template <class T>
[[WEFT_AVX512]] void PackColumnsAcross(const GemmMatrix<T>& b, int64_t k, int64_t cols, float* panels) {
  constexpr int64_t kElements = 4 / sizeof(T);
  constexpr int64_t kAhead = 12;
  const int64_t units = UnitsOf<T>(k);
  for (int64_t u = 0; u < units; ++u) {
    const T* const line = b.data + kElements * u * b.ld;
    const int64_t ahead = std::min(kElements * (u + kAhead), k - 1) * b.ld;
    const int64_t after = kElements * (u + kAhead) + 1 < k ? b.ld : 0;
    for (int64_t j = 0; j < cols; j += kPanelCols) {
      Prefetch(b.data + ahead + j);  // 128 bytes: 32 f32, or a line of each of two bf16
      Prefetch(sizeof(T) == 4 ? b.data + ahead + j + kLanes : b.data + ahead + after + j);
      float* const to = panels + (j * units) + u * kPanelCols;
      const int64_t count = cols - j;
      _mm512_storeu_si512(to, LoadAcross(line + j, b.ld, 0, k - kElements * u, std::min(count, kLanes)));
      _mm512_storeu_si512(to + kLanes, count <= kLanes
                                           ? _mm512_setzero_si512()
                                           : LoadAcross(line + j + kLanes, b.ld, 0, k - kElements * u,
                                                        std::min(count - kLanes, kLanes)));
    }
  }
}

// Column panels from lines along k.
template <class T>
[[WEFT_AVX512]] void PackColumnsAlong(const GemmMatrix<T>& b, int64_t k, int64_t cols, float* panels) {
  const int64_t units = UnitsOf<T>(k);
  for (int64_t j = 0; j < CeilToPanel(cols); j += kLanes) {
    const int64_t count = std::clamp<int64_t>(cols - j, 0, kLanes);
    float* const to = panels + j / kPanelCols * kPanelCols * units + j % kPanelCols;
    PackAlong(count > 0 ? b.At(0, j) : b.data, b.ld, count, k, kPanelCols, to);
  }
}

// Both types sum in f32, where a product of two bf16 is exact. A lane takes a pair of them per instruction:
// that is why bf16 has twice the peak of f32.
template <class T>
[[WEFT_AVX512]] inline __m512 MultiplyAdd(__m512 sum, __m512 a, __m512 b) {
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_fmadd_ps(a, b, sum);
  } else {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
}

// One vector of a result row, `mask` of it.
// What is added before comes first and the bias last, as a product and an add of its own would do it, so that
// a linear op in f32 has the bits of the two ops.
[[WEFT_AVX512]] inline void Write(__m512 sum, __mmask16 mask, int64_t row, int64_t column,
                                  const PanelResult& to) {
  if (to.add != nullptr) {
    sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to.add + row * to.add_ld + column));
  }
  if (to.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to.bias + column));
  if (to.f32 != nullptr) {
    _mm512_mask_storeu_ps(to.f32 + row * to.ld + column, mask, sum);
  } else {
    _mm256_mask_storeu_epi16(to.bf16 + row * to.ld + column, mask, (__m256i)_mm512_cvtneps_pbh(sum));
  }
}

// A unit costs 14 + 32 loaded numbers, 184 bytes, for 28 multiply-adds of whole vectors. That is little
// enough for panels to come from L2: 95 to 98% of the peak there, 99% in registers (docs/performance.md).
// The 28 sums are independent of each other, so none waits for the multiply-add before it. Each runs over k
// in order, and no lane ever meets another: hence bits that do not depend on m, n or the place in a panel.
template <int kRows, class T>
[[WEFT_AVX512]] void Multiply(int64_t units, const float* a, const float* b, const PanelResult& to,
                              PanelAhead& ahead) {
  for (int i = 0; i < kRows; ++i) {  // what is written at the end
    const void* const row =
        to.f32 != nullptr ? static_cast<const void*>(to.f32 + i * to.ld) : to.bf16 + i * to.ld;
    __builtin_prefetch(row, /*rw=*/1);
    if (to.f32 != nullptr && to.cols > kLanes) __builtin_prefetch(to.f32 + i * to.ld + kLanes, /*rw=*/1);
  }
  __m512 sums[kRows][2];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
  for (int64_t u = 0; u < units; ++u) {
    // One line of each kind for 4 units, so that the requests are spread over the product: a burst of them
    // would fill the buffers of outstanding lines that the panels' own loads need.
    if (u % kUnitsALine == 0) {
      if (ahead.has_panel()) _mm_prefetch(ahead.NextOfPanel(), _MM_HINT_T1);
      if (!ahead.done()) _mm_prefetch(ahead.Next(), _MM_HINT_T1);
    }
    const __m512 b0 = _mm512_loadu_ps(b);
    const __m512 b1 = _mm512_loadu_ps(b + kLanes);
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      const __m512 a_i = _mm512_set1_ps(a[i]);
      sums[i][0] = MultiplyAdd<T>(sums[i][0], a_i, b0);
      sums[i][1] = MultiplyAdd<T>(sums[i][1], a_i, b1);
    }
    a += kRows;
    b += kPanelCols;
  }
  const __mmask16 first = First(to.cols);
  const __mmask16 second = First(std::max<int64_t>(to.cols - kLanes, 0));
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    Write(sums[i][0], first, i, 0, to);
    if (second != 0) Write(sums[i][1], second, i, kLanes, to);
  }
}

// Every height from 1 to 14 has a loop of its own. Panels of nearly one height then need no padding: 15 rows
// are 8 and 7, and not 14 and a nearly empty panel.
using MultiplyFunction = void (*)(int64_t, const float*, const float*, const PanelResult&, PanelAhead&);

// By the number of rows, less one.
template <class T, size_t... kIndex>
constexpr std::array<MultiplyFunction, sizeof...(kIndex)> MultiplyTable(std::index_sequence<kIndex...>) {
  return {Multiply<static_cast<int>(kIndex) + 1, T>...};
}

#undef WEFT_AVX512

}  // namespace

// Asked at run time, since the build targets plain x86-64.
template <class T>
bool HasPanelProducts() {
  const bool has_f32 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (std::is_same_v<T, float>) return has_f32;
  return std::is_same_v<T, BFloat16> && has_f32 && __builtin_cpu_supports("avx512bf16");
}

template <class T>
void PackRowPanel(const GemmMatrix<T>& a, int64_t rows, int64_t k, float* panel) {
  if (a.transposed) {
    PackAcross(a.data, a.ld, k, rows, /*stride=*/rows, panel);
  } else {
    PackAlong(a.data, a.ld, rows, k, /*stride=*/rows, panel);
  }
}

template <class T>
void PackColumnPanels(const GemmMatrix<T>& b, int64_t k, int64_t cols, float* panels) {
  if (b.transposed) {
    PackColumnsAlong(b, k, cols, panels);
  } else {
    PackColumnsAcross(b, k, cols, panels);
  }
}

template <class T>
void MultiplyPanels(int64_t rows, int64_t units, const float* row_panel, const float* column_panel,
                    const PanelResult& to, PanelAhead& ahead) {
  static constexpr auto kTable = MultiplyTable<T>(std::make_index_sequence<kPanelRows>());
  kTable[rows - 1](units, row_panel, column_panel, to, ahead);
}

#else

template <class T>
bool HasPanelProducts() {
  return false;
}

template <class T>
void PackRowPanel(const GemmMatrix<T>&, int64_t, int64_t, float*) {
  WEFT_CHECK(false, "no panel products on this processor");
}

template <class T>
void PackColumnPanels(const GemmMatrix<T>&, int64_t, int64_t, float*) {
  WEFT_CHECK(false, "no panel products on this processor");
}

template <class T>
void MultiplyPanels(int64_t, int64_t, const float*, const float*, const PanelResult&, PanelAhead&) {
  WEFT_CHECK(false, "no panel products on this processor");
}

#endif

template bool HasPanelProducts<float>();
template bool HasPanelProducts<BFloat16>();
template void PackRowPanel(const GemmMatrix<float>&, int64_t, int64_t, float*);
template void PackRowPanel(const GemmMatrix<BFloat16>&, int64_t, int64_t, float*);
template void PackColumnPanels(const GemmMatrix<float>&, int64_t, int64_t, float*);
template void PackColumnPanels(const GemmMatrix<BFloat16>&, int64_t, int64_t, float*);
template void MultiplyPanels<float>(int64_t, int64_t, const float*, const float*, const PanelResult&,
                                    PanelAhead&);
template void MultiplyPanels<BFloat16>(int64_t, int64_t, const float*, const float*, const PanelResult&,
                                       PanelAhead&);

}  // namespace weft
