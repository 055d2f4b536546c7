// Errors of CUDA's calls.

#ifndef WEFT_RUNTIME_DEVICE_CUDA_CHECK_H_
#define WEFT_RUNTIME_DEVICE_CUDA_CHECK_H_

#include <cuda_runtime.h>

namespace weft {

[[noreturn]] void ThrowCuda(cudaError_t error, const char* call);

// Throws unless `error` is cudaSuccess; `call` names what returned it: CheckCuda(cudaFree(p), "cudaFree"). An
// error of earlier work, which CUDA reports at any later call, is told as such.
//
// Errors: Unavailable if there is no driver or device, or the program has no kernels for it;
//         ResourceExhausted out of memory; Internal for others.
inline void CheckCuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) ThrowCuda(error, call);
}

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_CUDA_CHECK_H_
