#ifndef WEFT_OPS_CPU_ROWS_H_
#define WEFT_OPS_CPU_ROWS_H_

#include <cstdint>

namespace weft {

struct NormSums {
  double g = 0;           // sum dy * w
  double g_centered = 0;  // sum dy * w * (x - mean)
};

// What softmax, norms and cross-entropy do with one dense row of n elements, T = float or double, vectorised
// for the machine that runs it. nan in gives nan out; sums are kept in double over blocks of the row. Bits
// depend on n and the instruction set only.
template <class T>
struct RowFunctions {
  // max x; -inf if n is 0.
  T (*max)(const T* x, int64_t n);
  double (*sum)(const T* x, int64_t n);
  double (*dot)(const T* a, const T* b, int64_t n);
  // sum (x - mean)^2
  double (*centered_squares)(const T* x, int64_t n, T mean);
  // sum exp(x - shift); a shift of -inf, the max of a row of -inf, counts as 0.
  double (*exp_sum)(const T* x, int64_t n, T shift);
  // y = exp(x - shift); returns sum y.
  double (*exp_write)(const T* x, int64_t n, T shift, T* y);
  // y = exp(x - shift) * scale + bias
  void (*exp_affine)(const T* x, int64_t n, T shift, T scale, T bias, T* y);
  // y = (x - shift) * scale + bias; y may be x.
  void (*affine)(const T* x, int64_t n, T shift, T scale, T bias, T* y);
  // dx = y * (dy - dot)
  void (*softmax_grad)(const T* y, const T* dy, int64_t n, T dot, T* dx);
  // dx = dy - exp(y) * sum
  void (*log_softmax_grad)(const T* y, const T* dy, int64_t n, T sum, T* dx);

  // y = (x - mean) * rstd * w + b; b may be null.
  void (*normalize)(const T* x, const T* w, const T* b, int64_t n, T mean, T rstd, T* y);
  // The sums that norm_grad takes, dy w and dy w (x - mean), and what norm_weight_grad does, in one pass. db
  // may be null.
  NormSums (*norm_grad_sums)(const T* x, const T* w, const T* dy, int64_t n, T mean, T rstd, T* dw, T* db);
  // sum dy * w * (x - mean)
  double (*norm_grad_dot)(const T* x, const T* w, const T* dy, int64_t n, T mean);
  // dx = rstd * (dy * w - g_mean - (x - mean) * rstd * gn_mean)
  void (*norm_grad)(const T* x, const T* w, const T* dy, int64_t n, T mean, T rstd, T g_mean, T gn_mean,
                    T* dx);
  // dw += dy * (x - mean) * rstd, db += dy; db may be null.
  void (*norm_weight_grad)(const T* x, const T* dy, int64_t n, T mean, T rstd, T* dw, T* db);
};

// The functions for this machine; T = float or double.
template <class T>
const RowFunctions<T>& Rows();

// log sum exp of a row, taken apart so that differences of large numbers stay exact: value = max + log(sum).
struct LogSumExp {
  double max = 0;
  double sum = 0;

  double Value() const;
};

// One pass over the row: the maximum is raised block by block, while a block is in the first-level cache.
template <class T>
LogSumExp RowLogSumExp(const T* x, int64_t n);

}  // namespace weft

#endif  // WEFT_OPS_CPU_ROWS_H_
