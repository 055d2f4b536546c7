#ifndef WEFT_OPS_CUDA_BLOCKS_INDICES_H_
#define WEFT_OPS_CUDA_BLOCKS_INDICES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "ops/op/kernel_call.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/copy.h"

namespace weft {

// Indices outside their range: the CPU's kernels name the first of them in an error. A CUDA kernel cannot,
// since nobody waits for it: what such an index would have selected is nan (0 in integers), and what it
// would have been added to is left alone.

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

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_INDICES_H_
