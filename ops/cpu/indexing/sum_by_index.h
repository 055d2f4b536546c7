#ifndef WEFT_OPS_CPU_INDEXING_SUM_BY_INDEX_H_
#define WEFT_OPS_CPU_INDEXING_SUM_BY_INDEX_H_

#include <cstdint>

#include "ops/op/kernel_call.h"

namespace weft {

// A row-major i64 list or block of indices, read as index[o * outer + j * along + k * inner].
struct IndexView {
  const int64_t* data = nullptr;
  int64_t outer = 0;
  int64_t along = 0;
  int64_t inner = 0;
};

// y[o, v, k] = the sum of src[o, j, k] over the j at which the index is first + v, in ascending order, from `start` on;
// indices outside y's range are another rank's. Halves are added in float and rounded once.
//
// Shape: y and src are row-major and differ in dim `dim` only; o runs over the dims before it, k over those
//        after it.
// Threads: on the pool; every element of y is the work of one task, whatever their number.
void SumByIndex(KernelContext& context, const Tensor& y, const Tensor& src, int dim, const IndexView& index,
                int64_t first, double start = 0);

}  // namespace weft

#endif  // WEFT_OPS_CPU_INDEXING_SUM_BY_INDEX_H_
