#include <cstdlib>

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

std::string NameCudaDevice(int index) {
  cudaDeviceProp properties = {};
  CheckCuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return properties.name;
}

std::shared_ptr<Allocator> MakeCudaAllocator(int index, const DeviceOptions& options) {
  auto allocator = std::make_shared<CudaAllocator>(index, options.cap_bytes, options.fill_freed);
  allocator->rank_state().set_allow_tf32(options.allow_tf32);
  return allocator;
}

std::shared_ptr<Allocator> MakePinned(const DeviceOptions& options) {
  return MakePinnedAllocator(options.fill_freed);
}

// CUDA reads it when it starts, which is after static initialisation. Streams that share a connection to the device wait for each
// other; there are 8 unless it says otherwise, and a rank has more streams (docs/gpus.md).
DeviceBackend WithConnections(const DeviceBackend& backend) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  return backend;
}

const RegisterDeviceBackend kRegister(DeviceType::kCuda, WithConnections({&CountCudaDevices, &NameCudaDevice,
                                                                          &MakeCudaAllocator, &MakePinned}));

}  // namespace
}  // namespace weft
