#ifndef WEFT_OPS_CPU_SPANS_SUM_ELEMENTS_H_
#define WEFT_OPS_CPU_SPANS_SUM_ELEMENTS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/spans/sum_spans.h"
#include "runtime/tensor/convert_spans.h"

namespace weft {

// The functions of sum_spans.h for elements of f32, bf16 or f16; the latter are widened while in cache.

// SumSpan, or SquareSumSpan.
template <bool kSquares, class T>
double SumElements(double total, const T* x, int64_t n) {
  if constexpr (!std::is_same_v<T, Float16>) {
    return kSquares ? SquareSumSpan(total, x, n) : SumSpan(total, x, n);
  } else {
    constexpr int64_t kPiece = 4 * kSumRun;
    float values[kPiece];
    for (int64_t begin = 0; begin < n; begin += kPiece) {
      const int64_t size = std::min(kPiece, n - begin);
      ConvertSpan(x + begin, values, size);
      total = SumElements<kSquares>(total, values, size);
    }
    return total;
  }
}

// AddRowsSpan, or AddSquaredRowsSpan.
template <bool kSquares, class T>
void AddElementRows(const T* x, int64_t rows, int64_t columns, int64_t stride, float* sums) {
  if constexpr (!std::is_same_v<T, Float16>) {
    if (kSquares) {
      AddSquaredRowsSpan(x, rows, columns, stride, sums);
    } else {
      AddRowsSpan(x, rows, columns, stride, sums);
    }
  } else {
    constexpr int64_t kColumns = 512;
    float values[kColumns];
    for (int64_t column = 0; column < columns; column += kColumns) {
      const int64_t width = std::min(kColumns, columns - column);
      for (int64_t row = 0; row < rows; ++row) {
        ConvertSpan(x + row * stride + column, values, width);
        AddElementRows<kSquares>(values, 1, width, kColumns, sums + column);
      }
    }
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_SUM_ELEMENTS_H_
