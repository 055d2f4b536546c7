// A row folded in double, whatever it is made of.

#ifndef WEFT_OPS_CPU_REDUCE_FOLD_IN_DOUBLE_H_
#define WEFT_OPS_CPU_REDUCE_FOLD_IN_DOUBLE_H_

#include <algorithm>
#include <cstdint>

namespace weft {

// combine over lift(x) of a row, from `identity`: in chains that do not wait for one another. The order
// follows from n alone.
template <class C, class Combine, class Lift>
double FoldInDouble(const C* x, int64_t n, double identity, const Combine& combine, const Lift& lift) {
  // Additions of doubles wait for each other; eight chains keep the adders busy.
  constexpr int kLanes = 8;
  double lanes[kLanes];
  std::fill_n(lanes, kLanes, identity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = combine(lanes[j], lift(static_cast<double>(x[i + j])));
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] = combine(lanes[j], lift(static_cast<double>(x[i])));
  for (int j = 1; j < kLanes; ++j) lanes[0] = combine(lanes[0], lanes[j]);
  return lanes[0];
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_REDUCE_FOLD_IN_DOUBLE_H_
