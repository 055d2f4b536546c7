#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/check.h"
#include "runtime/device/device_backend.h"

namespace weft {
namespace {

int CountCudaDevices() {
  int count = 0;
  CheckCuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

std::shared_ptr<Allocator> MakeCudaAllocator(int index, const AllocatorOptions& options) {
  return std::make_shared<CudaAllocator>(index, options.cap_bytes);
}

const RegisterDeviceBackend kRegister(DeviceType::kCuda, {&CountCudaDevices, &MakeCudaAllocator});

}  // namespace
}  // namespace weft
