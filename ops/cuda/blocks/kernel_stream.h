#ifndef WEFT_OPS_CUDA_BLOCKS_KERNEL_STREAM_H_
#define WEFT_OPS_CUDA_BLOCKS_KERNEL_STREAM_H_

#include "ops/op/kernel_call.h"
#include "runtime/base/error.h"
#include "runtime/device/cuda/allocator.h"

namespace weft {

// The rank's memory of the GPU, with its stream and state.
// Errors: Internal if it is another device's.
inline const CudaAllocator& AsCudaAllocator(const Allocator& allocator) {
  WEFT_CHECK(allocator.device().type == DeviceType::kCuda, "a CUDA kernel called on ",
             DeviceTypeName(allocator.device().type));
  return static_cast<const CudaAllocator&>(allocator);
}

// The stream that a call's work goes to: that of the rank's memory.
inline CudaStreamRef KernelStream(const KernelCallBase& call) {
  return AsCudaAllocator(*call.context.allocator).stream();
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_KERNEL_STREAM_H_
