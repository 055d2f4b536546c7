// Sums along dims, in an order that follows from the shape alone.

#ifndef WEFT_OPS_CUDA_REDUCE_SUM_ALONG_H_
#define WEFT_OPS_CUDA_REDUCE_SUM_ALONG_H_

#include "ops/op/kernel_call.h"
#include "ops/reduce/reduce.h"
#include "runtime/tensor/tensor.h"

namespace weft {

struct SumOptions {
  double factor = 1;       // of each sum; 1 for integers
  bool take_root = false;  // of sum * factor
  // Where defined, the sum is of (x - around)^2: one number a result, row-major in the compute type of x.
  Tensor around = {};
  bool square = false;  // the same around 0
  // Squares in double from the first on, for those that leave the range of x's compute type.
  bool in_double = false;
};

// y = the sums of x over `dims`, a result for each index of the other dims, row-major. x of any strides, f32,
// f64, bf16, f16, i32 or i64; y row-major, of the dtype of x, of its compute type, or f64. Runs of a thread
// add up in the compute type, runs in double; integers in 64 bits.
void SumAlong(const KernelCallBase& call, const Tensor& x, DimMask dims, const Tensor& y,
              const SumOptions& options = {});

}  // namespace weft

#endif  // WEFT_OPS_CUDA_REDUCE_SUM_ALONG_H_
