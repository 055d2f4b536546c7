#include "runtime/device/cuda/allocator.h"

#include <algorithm>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/device/cuda/check.h"

namespace weft {
namespace {

int MakeCurrent(int device) {
  SetCudaDevice(device);
  return device;
}

// For what does not throw. Of a device that has failed nothing can be given back, whatever the thread's is.
void TryToGuard(std::optional<CudaDeviceGuard>* guard, int device) noexcept {
  try {
    guard->emplace(device);
  } catch (const Error&) {
  }
}

class PinnedAllocator final : public PooledAllocator {
 public:
  explicit PinnedAllocator(bool fill_freed) : PooledAllocator(/*cap_bytes=*/0, /*guards=*/fill_freed) {}
  ~PinnedAllocator() override { ReturnPoolToSystem(); }

  Device device() const override { return {DeviceType::kCpu}; }

 protected:
  void* TakeFromSystem(int64_t num_bytes) override {
    void* block = nullptr;
    const cudaError_t error = cudaMallocHost(&block, static_cast<size_t>(num_bytes));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    CheckCuda(error, "cudaMallocHost");
    return block;
  }

  void ReturnToSystem(void* block, int64_t) noexcept override { cudaFreeHost(block); }
};

}  // namespace

CudaAllocator::CudaAllocator(int device, int64_t cap_bytes, bool fill_freed)
    : PooledAllocator(cap_bytes, /*guards=*/fill_freed),
      device_(MakeCurrent(device)),
      fill_freed_(fill_freed) {}

// The last owner may be any thread. What is queued may still use the memory.
CudaAllocator::~CudaAllocator() {
  std::optional<CudaDeviceGuard> guard;
  TryToGuard(&guard, device_);
  cudaStreamSynchronize(stream_.ref().handle());
  ReturnPoolToSystem();
}

void* CudaAllocator::TakeFromSystem(int64_t num_bytes) {
  const CudaDeviceGuard guard(device_);
  void* block = nullptr;
  const cudaError_t error = cudaMalloc(&block, static_cast<size_t>(num_bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // told by null
    return nullptr;
  }
  CheckCuda(error, "cudaMalloc");
  return block;
}

bool CudaAllocator::SystemHasRoom(int64_t num_bytes) {
  constexpr int64_t kMostLeft = int64_t{256} << 20;
  const CudaDeviceGuard guard(device_);
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();  // cudaMalloc will say what is wrong
    return true;
  }
  return static_cast<int64_t>(free) - num_bytes >= std::min(kMostLeft, static_cast<int64_t>(total) / 64);
}

// What is queued before it on the stream still reads the block as it was.
void CudaAllocator::Guard(void* block, int64_t num_bytes, int64_t usable_bytes) noexcept {
  if (!fill_freed_ || usable_bytes > 0) return;
  cudaMemsetAsync(block, 0xff, static_cast<size_t>(num_bytes), stream_.ref().handle());
}

// On whichever thread asks for a block that the pool lacks.
void CudaAllocator::ReturnToSystem(void* block, int64_t) noexcept {
  std::optional<CudaDeviceGuard> guard;
  TryToGuard(&guard, device_);
  cudaFree(block);
}

std::shared_ptr<Allocator> MakePinnedAllocator(bool fill_freed) {
  return std::make_shared<PinnedAllocator>(fill_freed);
}

}  // namespace weft
