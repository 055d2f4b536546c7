#ifndef WEFT_OPS_CUDA_INDEXING_SORT_ROWS_H_
#define WEFT_OPS_CUDA_INDEXING_SORT_ROWS_H_

#include <cstdint>

#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// How rows along a dim are put in order.
struct CudaRowOrder {
  int dim = 0;
  bool descending = false;
  Tensor names;  // what elements go by, i64 of x's shape; undefined: their index, plus `first`
  int64_t first = 0;
  double rest = 0;        // where x has fewer elements than the output, the value of the rest, and the
  int64_t rest_name = 0;  // name
};

// Every row of values and names [.., k, ..] becomes the first k elements of the row of x along the dim, in
// order: by value, NaN greater than all numbers and -0 equal to 0, then by name, the lower first in either
// direction.
//
// Shape: any dtype; names i64. Outputs row-major, x of any strides.
// Cost:  bitonic networks on rows padded to a power of two, in shared memory up to 1024 elements, beyond it
//        in passes over workspace of 24 bytes per element, for as many rows at a time as fit into 32 MiB, one
//        at least. Elements have no equals, so the order is unique.
void CudaSortRows(const KernelCallBase& call, const Tensor& x, const CudaRowOrder& order,
                  const Tensor& values, const Tensor& names);

}  // namespace weft

#endif  // WEFT_OPS_CUDA_INDEXING_SORT_ROWS_H_
