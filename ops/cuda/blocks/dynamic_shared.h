#ifndef WEFT_OPS_CUDA_BLOCKS_DYNAMIC_SHARED_H_
#define WEFT_OPS_CUDA_BLOCKS_DYNAMIC_SHARED_H_

#include <cuda_runtime.h>

namespace weft {

// The shared memory that the launch asked for (CudaGrid::shared_bytes), aligned to 16 bytes.
#ifdef __CUDACC__
template <class T>
__device__ T* DynamicShared() {
  extern __shared__ __align__(16) unsigned char weft_dynamic_shared[];
  return reinterpret_cast<T*>(weft_dynamic_shared);
}
#else
template <class T>
T* DynamicShared() {
  return reinterpret_cast<T*>(::cuda_emulator::DynamicShared());
}
#endif

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_DYNAMIC_SHARED_H_
