#ifndef WEFT_OPS_CPU_SPANS_ROWS_H_
#define WEFT_OPS_CPU_SPANS_ROWS_H_

#include <cstdint>

#include "ops/cpu/spans/compute_type.h"

namespace weft {

// log sum exp of a row, taken apart so that differences of large numbers stay exact: value = max + log(sum).
struct LogSumExp {
  double max = 0;
  double sum = 0;

  double Value() const;
};

// What softmax, cross-entropy and reductions do with one dense row of n elements of S (float, double,
// BFloat16 or Float16), vectorised for the machine that runs it. Halves become floats, and results halves, in
// registers. nan in gives nan out; sums are kept in double over blocks of the row. Bits depend on n and the
// instruction set only.
//
// e^x is of relative error 5e-7 for float, and 5e-6 for halves.
template <class S>
struct RowFunctions {
  using C = ComputeType<S>;

  // max x; -inf if n is 0.
  C (*max)(const S* x, int64_t n);
  double (*sum)(const S* x, int64_t n);
  double (*dot)(const S* a, const S* b, int64_t n);
  // sum (x - mean)^2
  double (*centered_squares)(const S* x, int64_t n, C mean);
  // sum exp(x - shift); a shift of -inf, the max of a row of -inf, counts as 0.
  double (*exp_sum)(const S* x, int64_t n, C shift);
  // In one pass: the shift is raised where an element is far above it.
  LogSumExp (*log_sum_exp)(const S* x, int64_t n);
  // y = exp(x - max x) / their sum. `scratch` is of n + kRowScratch numbers, and unused unless S is a half.
  void (*softmax)(const S* x, int64_t n, C* scratch, S* y);
  // y = exp(x - shift) * scale + bias
  void (*exp_affine)(const S* x, int64_t n, C shift, C scale, C bias, S* y);
  // y = (x - shift) * scale + bias; y may be x.
  void (*affine)(const S* x, int64_t n, C shift, C scale, C bias, S* y);
  // dx = y * (dy - dot)
  void (*softmax_grad)(const S* y, const S* dy, int64_t n, C dot, S* dx);
  // dx = dy - exp(y) * sum
  void (*log_softmax_grad)(const S* y, const S* dy, int64_t n, C sum, S* dx);
};

// What rows in scratch memory may take beyond their end: less than a pack of elements.
inline constexpr int64_t kRowScratch = 64;

// The functions for this machine; S = float, double, BFloat16 or Float16.
template <class S>
const RowFunctions<S>& Rows();

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_ROWS_H_
