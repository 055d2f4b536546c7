#ifndef WEFT_RUNTIME_TENSOR_CUDA_GRID_LOOP_H_
#define WEFT_RUNTIME_TENSOR_CUDA_GRID_LOOP_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime/device/cuda/launch.h"

namespace weft {

// A grid for kernels whose threads take the elements, or vectors of them, in turn: enough blocks to fill any
// GPU, no more. Which thread takes what does not show in the result.
inline CudaGrid GridOver(int64_t count) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kMostBlocks = 132 * 16;
  const int64_t blocks = std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kMostBlocks);
  return {.blocks = static_cast<unsigned>(blocks), .threads = static_cast<unsigned>(kThreads)};
}

// Calls `visit(i)` for every i below `count`, spread over the threads of such a grid.
template <class Visit>
__device__ void ForEachOfGrid(int64_t count, const Visit& visit) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) visit(i);
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_CUDA_GRID_LOOP_H_
