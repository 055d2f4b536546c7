#ifndef WEFT_RUNTIME_DEVICE_CUDA_LAUNCH_H_
#define WEFT_RUNTIME_DEVICE_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "runtime/device/cuda/check.h"
#include "runtime/device/cuda/stream.h"

namespace weft {

// The extents of a launch. The grid may not be empty: callers return before, where there is nothing to do.
struct CudaGrid {
  dim3 blocks;
  dim3 threads;             // a block
  size_t shared_bytes = 0;  // dynamic, a block
};

// How much shared memory a block may have on the calling thread's device.
// Errors: as CheckCuda.
size_t MostCudaSharedBytes();

// What has become of the request for so much of it: clear text where the device has less.
// Errors: Unavailable then, with both numbers; as CheckCuda.
void CheckCudaSharedBytes(cudaError_t error, size_t num_bytes);

// Issues `kernel(arguments...)` to `stream`; does not wait for it.
//   LaunchCuda(stream, {.blocks = n, .threads = 256}, AddKernel<float>, x, y, count);
// Errors: as CheckCuda and CheckCudaSharedBytes; those of the kernel itself come from a later call.
template <class... Parameters, class... Arguments>
void LaunchCuda(CudaStreamRef stream, const CudaGrid& grid, void (*kernel)(Parameters...),
                Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream.handle();
  // Beyond 48 KiB a kernel must be told once; telling it again costs little.
  constexpr size_t kDefaultSharedBytes = 48 << 10;
  if (grid.shared_bytes > kDefaultSharedBytes) {
    CheckCudaSharedBytes(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(grid.shared_bytes)),
                         grid.shared_bytes);
  }
  CheckCuda(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...),
      "cudaLaunchKernelEx");
}

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_CUDA_LAUNCH_H_
