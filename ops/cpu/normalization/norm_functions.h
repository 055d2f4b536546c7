// The inner loops of norms over rows, chosen at run time by instruction set.

#ifndef WEFT_OPS_CPU_NORMALIZATION_NORM_FUNCTIONS_H_
#define WEFT_OPS_CPU_NORMALIZATION_NORM_FUNCTIONS_H_

#include <cstdint>

#include "ops/cpu/spans/compute_type.h"
#include "ops/cpu/spans/rows.h"

namespace weft {

struct NormSums {
  double g = 0;           // sum dy * w
  double g_centered = 0;  // sum dy * w * (x - mean)
};

// What layer norm and RMS norm do with one dense row of n elements of S, as RowFunctions do.
//
// dw and db are sums over rows, a number for each column, in an order of their own: that of the vectors of S.
// ColumnOfSum says which column a place holds; arrays of n + kRowScratch places suffice.
template <class S>
struct NormFunctions {
  using C = ComputeType<S>;

  // y = (x - mean) * rstd * w + b; b may be null.
  void (*normalize)(const S* x, const S* w, const S* b, int64_t n, C mean, C rstd, S* y);
  // The sums that grad takes, dy w and dy w (x - mean), and what weight_grad does, in one pass. db may be
  // null.
  NormSums (*grad_sums)(const S* x, const S* w, const S* dy, int64_t n, C mean, C rstd, C* dw, C* db);
  // sum dy * w * (x - mean)
  double (*grad_dot)(const S* x, const S* w, const S* dy, int64_t n, C mean);
  // dx = rstd * (dy * w - g_mean - (x - mean) * rstd * gn_mean)
  void (*grad)(const S* x, const S* w, const S* dy, int64_t n, C mean, C rstd, C g_mean, C gn_mean, S* dx);
  // dw += dy * (x - mean) * rstd, db += dy; db may be null.
  void (*weight_grad)(const S* x, const S* dy, int64_t n, C mean, C rstd, C* dw, C* db);

  int64_t pack_size;  // elements of S that a vector holds

  // A column, or n or more where the place pads the last pack.
  int64_t ColumnOfSum(int64_t place) const {
    if (sizeof(S) != 2) return place;
    const int64_t i = place % pack_size;
    const int64_t half = pack_size / 2;
    return place - i + (i < half ? 2 * i : 2 * (i - half) + 1);
  }
  // Places of n columns: whole packs of halves.
  int64_t NumSums(int64_t n) const {
    return sizeof(S) == 2 ? (n + pack_size - 1) / pack_size * pack_size : n;
  }
};

// The functions for this machine; S = float, double, BFloat16 or Float16.
template <class S>
const NormFunctions<S>& NormRows();

}  // namespace weft

#endif  // WEFT_OPS_CPU_NORMALIZATION_NORM_FUNCTIONS_H_
