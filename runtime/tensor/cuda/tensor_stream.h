#ifndef WEFT_RUNTIME_TENSOR_CUDA_TENSOR_STREAM_H_
#define WEFT_RUNTIME_TENSOR_CUDA_TENSOR_STREAM_H_

#include "runtime/base/error.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The stream in whose order work on the tensor's memory runs: its allocator's.
// Errors: Internal if the tensor is not on a GPU (a caller's defect).
inline CudaStreamRef CudaStreamOf(const Tensor& tensor) {
  WEFT_CHECK(tensor.device().type == DeviceType::kCuda, tensor.TypeString(), " is not on cuda");
  return static_cast<const CudaAllocator&>(*tensor.buffer()->allocator()).stream();
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_CUDA_TENSOR_STREAM_H_
