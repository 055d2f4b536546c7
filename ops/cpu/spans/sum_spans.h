#ifndef WEFT_OPS_CPU_SPANS_SUM_SPANS_H_
#define WEFT_OPS_CPU_SPANS_SUM_SPANS_H_

#include <cstdint>

#include "runtime/base/float16.h"

namespace weft {

// Sums over arrays of float, or of bf16 widened to it, compiled for every instruction set level and chosen at
// run time. The order of the additions is fixed, so all levels give the same bits.

// Elements of a run, in which floats are added as floats: 16 in each of 32 sums, element i in sum i % 32.
inline constexpr int64_t kSumRun = 512;

// `total` plus the sum of x, or of its squares. A run's 32 sums are halved to four (j + j + 16, then 8, then
// 4), which are added to the total in double, in order. So a long array may come in pieces, each but the last
// of whole runs.
double SumSpan(double total, const float* x, int64_t n);
double SumSpan(double total, const BFloat16* x, int64_t n);
double SquareSumSpan(double total, const float* x, int64_t n);
double SquareSumSpan(double total, const BFloat16* x, int64_t n);

// sums[i] += x[i], sums[i] += x[i + stride], ..., row after row, for `columns` sums and `rows` rows; and the
// same of squares.
void AddRowsSpan(const float* x, int64_t rows, int64_t columns, int64_t stride, float* sums);
void AddRowsSpan(const BFloat16* x, int64_t rows, int64_t columns, int64_t stride, float* sums);
void AddSquaredRowsSpan(const float* x, int64_t rows, int64_t columns, int64_t stride, float* sums);
void AddSquaredRowsSpan(const BFloat16* x, int64_t rows, int64_t columns, int64_t stride, float* sums);

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_SUM_SPANS_H_
