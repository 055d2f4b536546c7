#include "runtime/device/cuda/check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// "9.0" of the calling thread's device; "unknown" if even that cannot be had.
std::string ComputeCapability() {
  int device = 0;
  int major = 0;
  int minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return "unknown";
  }
  return absl::StrCat(major, ".", minor);
}

}  // namespace

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
    case cudaErrorNoKernelImageForDevice:
      Throw(absl::StatusCode::kUnavailable, "CUDA: this program has no kernels for this GPU, whose compute ",
            "capability is ", ComputeCapability(), "; they need 8.0, and the architectures that the program ",
            "was built for: --repo_env=WEFT_CUDA_ARCHS (", call, ")");
    case cudaErrorIllegalAddress:
      Throw(absl::StatusCode::kInternal, "CUDA: a kernel that ran before ", call,
            " read or wrote memory that is not its own; the device is lost to this process");
    default:
      Throw(absl::StatusCode::kInternal, "CUDA: ", call, ": ", cudaGetErrorName(error), ": ",
            cudaGetErrorString(error));
  }
}

}  // namespace weft
