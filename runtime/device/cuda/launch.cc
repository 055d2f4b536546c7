#include "runtime/device/cuda/launch.h"

#include "runtime/base/error.h"

namespace weft {

size_t MostCudaSharedBytes() {
  int device = 0;
  int num_bytes = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&num_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
            "cudaDeviceGetAttribute");
  return static_cast<size_t>(num_bytes);
}

void CheckCudaSharedBytes(cudaError_t error, size_t num_bytes) {
  if (error == cudaSuccess) return;
  const size_t most = MostCudaSharedBytes();
  if (num_bytes <= most) ThrowCuda(error, "cudaFuncSetAttribute");
  cudaGetLastError();  // told here
  Throw(absl::StatusCode::kUnavailable, "CUDA: a block of this kernel needs ", num_bytes,
        " bytes of shared memory, this GPU gives at most ", most);
}

}  // namespace weft
