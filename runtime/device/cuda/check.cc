#include "runtime/device/cuda/check.h"

#include "runtime/base/error.h"

namespace weft {

void ThrowCuda(cudaError_t error, const char* call) {
  cudaGetLastError();  // what has been told need not come again
  switch (error) {
    case cudaErrorInsufficientDriver:
      Throw(absl::StatusCode::kUnavailable,
            "no CUDA device: driver not found, or older than this program's CUDA (", call, ")");
    case cudaErrorNoDevice:
      Throw(absl::StatusCode::kUnavailable,
            "no CUDA device: the driver sees none; see CUDA_VISIBLE_DEVICES (", call, ")");
    case cudaErrorMemoryAllocation:
      Throw(absl::StatusCode::kResourceExhausted, "out of memory on cuda: ", call);
    case cudaErrorIllegalAddress:
      Throw(absl::StatusCode::kInternal, "CUDA: a kernel that ran before ", call,
            " read or wrote memory that is not its own; the device is lost to this process");
    default:
      Throw(absl::StatusCode::kInternal, "CUDA: ", call, ": ", cudaGetErrorName(error), ": ",
            cudaGetErrorString(error));
  }
}

}  // namespace weft
