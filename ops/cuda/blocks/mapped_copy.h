#ifndef WEFT_OPS_CUDA_BLOCKS_MAPPED_COPY_H_
#define WEFT_OPS_CUDA_BLOCKS_MAPPED_COPY_H_

#include <cstdint>

#include "absl/types/span.h"
#include "mesh/shard_math.h"
#include "ops/op/absent.h"
#include "ops/op/kernel_call.h"

namespace weft {

// How pieces of a tensor become pieces of a rearranged one, one dim at a time, as ops/cpu/spans/dim_maps.h
// has it, but by numbers that a kernel evaluates.

// Where along one dim the global index `i` of y comes from: x's global index factor * i + shift, taken modulo `wrap` if that is
// positive, over `divisor`, and nowhere if that does not divide it; if `indices` is not null, indices[i - y's offset] on the
// device instead.
struct CudaDimSource {
  bool is_mapped = false;  // false: the dim stays as it is, piece by piece
  int64_t factor = 1;
  int64_t shift = 0;
  int64_t wrap = 0;
  int64_t divisor = 1;
  const int64_t* indices = nullptr;
};

// y[i, j, ...] = x[sources[0](i), sources[1](j), ...]; `nowhere` where that is outside the whole of x, else
// kAbsent where another rank holds it. One pass over y.
//
// Shape: one source a dim; y is row-major, x of any strides and the same dtype.
void CudaMappedCopy(const KernelCallBase& call, const Tensor& x, const ShardBox& x_box, const Tensor& y,
                    const ShardBox& y_box, absl::Span<const CudaDimSource> sources, double nowhere = 0);

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_MAPPED_COPY_H_
