#ifndef WEFT_OPS_CUDA_BLOCKS_INDICES_H_
#define WEFT_OPS_CUDA_BLOCKS_INDICES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "mesh/shard_math.h"
#include "ops/op/kernel_call.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/copy.h"

namespace weft {

// Indices outside their range: the CPU's kernels name the first of them in an error. A CUDA kernel cannot,
// since nobody waits for it: what such an index would have selected is nan (0 in integers), and where it would
// have written, the place nearest to it becomes nan (in integers nothing is written).

// Tokens or indices, i32 or i64 of any strides, as row-major i64: `tensor` itself where it is that.
inline Tensor CudaIndices(const Tensor& tensor, const std::shared_ptr<Allocator>& allocator) {
  return tensor.dtype() == DType::kI64 && tensor.IsContiguous() ? tensor
                                                                : CastTensor(tensor, DType::kI64, allocator);
}

inline Tensor CudaDense(const Tensor& tensor, const std::shared_ptr<Allocator>& allocator) {
  return tensor.IsContiguous() ? tensor : CloneTensor(tensor, allocator);
}

// What stands for an element that was selected by a bad index.
template <class T>
constexpr T BadElement() {
  if constexpr (kIsFloatingType<T>) return ConvertElement<T>(std::numeric_limits<double>::quiet_NaN());
  return ConvertElement<T>(0.0);
}

// The places along a dim that a rank's piece of a result has, for kernels that write by index: plain numbers.
struct CudaSlots {
  int64_t first = 0;       // of the piece, in the whole
  int64_t count = 0;       // of the piece
  int64_t extent = 0;      // of the whole
  bool takes_bad = false;  // whether a bad index goes to the slot nearest to it, to make it nan

  CudaSlots(const ShardBox& box, int dim, DType dtype)
      : first(box.offset[dim]),
        count(box.shape[dim]),
        extent(box.global_shape[dim]),
        takes_bad(IsFloating(dtype)) {}

  __device__ bool IsBad(int64_t index) const { return index < 0 || index >= extent; }
  // The slot that the index goes to; -1 if it goes to another rank's or to none.
  __device__ int64_t Find(int64_t index) const {
    if (IsBad(index)) {
      if (!takes_bad) return -1;
      index = index < 0 ? 0 : extent - 1;
    }
    const int64_t slot = index - first;
    return slot >= 0 && slot < count ? slot : -1;
  }
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_INDICES_H_
