#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/check.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/device/device_backend.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaDeviceTest : public testing::Test {
 protected:
  ~CudaDeviceTest() override { cuda_emulator::SetMachine({}); }
};

TEST_F(CudaDeviceTest, SaysWhyThereIsNoDevice) {
  cuda_emulator::SetMachine({.has_driver = false});
  const auto make = [] { MakeAllocator({DeviceType::kCuda}); };
  EXPECT_THAT(MessageOf(make), HasSubstr("no CUDA device: driver not found"));
  cuda_emulator::SetMachine({.num_devices = 0});
  EXPECT_THAT(MessageOf(make), HasSubstr("no CUDA device: the driver sees none; see CUDA_VISIBLE_DEVICES"));
  cuda_emulator::SetMachine({.num_devices = 2});
  EXPECT_EQ(CountDevices(DeviceType::kCuda), 2);
  EXPECT_EQ(MessageOf([] { MakeAllocator({DeviceType::kCuda, 2}); }), "device cuda:2: this process sees 2");
  EXPECT_EQ(MakeAllocator({DeviceType::kCuda, 1})->device(), (Device{DeviceType::kCuda, 1}));
  EXPECT_EQ(DeviceName({DeviceType::kCuda, 1}), "emulated GPU 1");
  EXPECT_EQ(DeviceName({DeviceType::kCpu}), "cpu");
  EXPECT_EQ(MessageOf([] { DeviceName({DeviceType::kCuda, 2}); }), "device cuda:2: this process sees 2");
}

TEST_F(CudaDeviceTest, SaysThatAGpuIsTooOldForTheProgram) {
  cuda_emulator::SetMachine({.compute_capability = 75});
  const auto allocator = MakeAllocator({DeviceType::kCuda});
  EXPECT_THAT(MessageOf([] { CheckCuda(cudaErrorNoKernelImageForDevice, "cudaLaunchKernelEx"); }),
              AllOf(HasSubstr("no kernels for this GPU, whose compute capability is 7.5"),
                    HasSubstr("they need 8.0"), HasSubstr("WEFT_CUDA_ARCHS")));
}

TEST_F(CudaDeviceTest, TakesWhatTheRankAllows) {
  const auto allows = [](const DeviceOptions& options) {
    const auto allocator = MakeAllocator({DeviceType::kCuda}, options);
    return static_cast<const CudaAllocator&>(*allocator).rank_state().allow_tf32();
  };
  EXPECT_FALSE(allows({}));
  EXPECT_TRUE(allows({.allow_tf32 = true}));
}

TEST_F(CudaDeviceTest, PoolsWithoutAskingTheDriverTwice) {
  const int64_t before = cuda_emulator::LiveBytes();
  {
    const auto allocator = MakeAllocator({DeviceType::kCuda});
    void* const a = allocator->Allocate(1000);
    const int64_t num_mallocs = cuda_emulator::NumMallocs();
    EXPECT_EQ(allocator->stats(),
              (AllocatorStats{.live_bytes = 1024, .peak_bytes = 1024, .num_allocations = 1}));
    allocator->Deallocate(a, 1000);
    EXPECT_EQ(allocator->Allocate(1001), a);
    EXPECT_EQ(cuda_emulator::NumMallocs(), num_mallocs);
    allocator->Deallocate(a, 1001);
  }
  EXPECT_EQ(cuda_emulator::LiveBytes(), before);
}

TEST_F(CudaDeviceTest, OutOfMemoryNamesWhatThereIs) {
  cuda_emulator::SetMachine({.memory_bytes = 1 << 20});
  const auto allocator = MakeAllocator({DeviceType::kCuda});
  void* const a = allocator->Allocate(600 << 10);
  allocator->Deallocate(a, 600 << 10);
  // Fits only if the pool gives its block back first.
  void* const b = allocator->Allocate(900 << 10);
  EXPECT_THAT(MessageOf([&] { allocator->Allocate(200 << 10); }),
              AllOf(HasSubstr("out of memory on cuda: cannot allocate 204800 bytes; live 921600 bytes"),
                    HasSubstr("peak 921600 bytes")));
  allocator->Deallocate(b, 900 << 10);
  const auto capped = MakeAllocator({DeviceType::kCuda}, {.cap_bytes = 4096});
  EXPECT_THAT(MessageOf([&] { capped->Allocate(4097); }), HasSubstr("cap 4096 bytes"));
  EXPECT_THAT(MessageOf([] { MakeAllocator({DeviceType::kCpu}, {.cap_bytes = 64})->Allocate(65); }),
              HasSubstr("out of memory on cpu: cannot allocate 65 bytes; live 0 bytes"));
}

// The driver loads kernels at their first launch, and NCCL makes buffers, from what the pool leaves.
TEST_F(CudaDeviceTest, ThePoolLeavesMemoryToOthers) {
  constexpr int64_t kMebibyte = 1 << 20;
  cuda_emulator::SetMachine({.memory_bytes = 64 * kMebibyte});  // of which others get 1 MiB
  const auto allocator = MakeAllocator({DeviceType::kCuda});
  const auto use = [&](int64_t num_bytes) {
    allocator->Deallocate(allocator->Allocate(num_bytes), num_bytes);
  };
  use(48 * kMebibyte);
  use(15 * kMebibyte);
  EXPECT_EQ(allocator->stats().pooled_bytes, 63 * kMebibyte);
  use(kMebibyte / 2);
  EXPECT_EQ(allocator->stats().pooled_bytes, 15 * kMebibyte + kMebibyte / 2);
  void* others = nullptr;
  EXPECT_EQ(cudaMalloc(&others, kMebibyte), cudaSuccess);
  EXPECT_EQ(cudaFree(others), cudaSuccess);
  use(64 * kMebibyte);  // what tensors need they get
}

// A rank has more streams than share none by CUDA's default; who starts the program may say otherwise.
TEST_F(CudaDeviceTest, StreamsHaveConnectionsOfTheirOwn) {
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  ASSERT_NE(connections, nullptr);
  EXPECT_STREQ(connections, "32");
}

TEST_F(CudaDeviceTest, ErrorsNameTheCall) {
  const CudaStream stream;
  cuda_emulator::FailNext("cudaStreamSynchronize", cudaErrorIllegalAddress);
  EXPECT_THAT(
      MessageOf([&] { stream.ref().Synchronize(); }),
      HasSubstr("a kernel that ran before cudaStreamSynchronize read or wrote memory that is not its own"));
  int not_a_pointer = 0;
  EXPECT_EQ(MessageOf([&] { CheckCuda(cudaFree(&not_a_pointer), "cudaFree"); }),
            "CUDA: cudaFree: cudaErrorInvalidValue: emulated error");
}

// One that has been given a device goes back to it.
TEST_F(CudaDeviceTest, AThreadWithoutADeviceKeepsTheFirstThatItUses) {
  cuda_emulator::SetMachine({.num_devices = 3});
  const auto device_of_thread = [] {
    int device = -1;
    CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  };
  const auto device_behind_guard = [&](int guarded) {
    {
      const CudaDeviceGuard guard(guarded);
      EXPECT_EQ(device_of_thread(), guarded);
    }
    return device_of_thread();
  };
  std::thread([&] {
    EXPECT_EQ(device_behind_guard(2), 2);
    EXPECT_EQ(device_behind_guard(1), 2);
  }).join();
  std::thread([&] {
    SetCudaDevice(0);
    EXPECT_EQ(device_behind_guard(2), 0);
  }).join();
}

// Whoever asks for a block that the pool lacks, and whoever lets go of the allocator last, may be a thread that serves another
// GPU or none: CUDA would make a context there.
TEST_F(CudaDeviceTest, MemoryGoesBackOnItsOwnDevice) {
  constexpr int64_t kMebibyte = 1 << 20;
  cuda_emulator::SetMachine({.num_devices = 2});
  std::shared_ptr<Allocator> allocator;
  std::thread([&] {
    allocator = MakeAllocator({DeviceType::kCuda, 1}, {.cap_bytes = 8 * kMebibyte});
  }).join();
  const int64_t before = cuda_emulator::NumCallsFromOtherDevices();
  std::thread([&] {
    SetCudaDevice(0);
    for (const int64_t num_bytes : {6 * kMebibyte, 4 * kMebibyte}) {  // more than the cap together
      allocator->Deallocate(allocator->Allocate(num_bytes), num_bytes);
    }
    EXPECT_EQ(allocator->stats().pooled_bytes, 4 * kMebibyte);
    int device = -1;
    CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
    EXPECT_EQ(device, 0);
  }).join();
  std::thread([&] { allocator = nullptr; }).join();
  EXPECT_EQ(cuda_emulator::NumCallsFromOtherDevices(), before);
}

__global__ void Doubled(const float* in, float* out, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = 2 * in[i];
}

TEST_F(CudaDeviceTest, StreamsEventsAndPinnedMemory) {
  const auto allocator = std::make_shared<CudaAllocator>(0);
  const CudaStream other;
  constexpr int64_t kCount = 1000;
  constexpr size_t kBytes = kCount * sizeof(float);
  float* const a = static_cast<float*>(allocator->Allocate(kBytes));
  float* const b = static_cast<float*>(allocator->Allocate(kBytes));
  const auto pinned_allocator = MakePinnedAllocator();
  float* const pinned = static_cast<float*>(pinned_allocator->Allocate(kBytes));
  for (int i = 0; i < kCount; ++i) pinned[i] = static_cast<float>(i);
  const auto copy = [](void* to, const void* from, cudaMemcpyKind kind, CudaStreamRef stream) {
    CheckCuda(cudaMemcpyAsync(to, from, kBytes, kind, stream.handle()), "cudaMemcpyAsync");
  };
  copy(a, pinned, cudaMemcpyHostToDevice, allocator->stream());
  LaunchCuda(allocator->stream(), {.blocks = 4, .threads = 256}, Doubled, a, b, kCount);
  CudaEvent computed(CudaEvent::Timing::kOn);
  computed.Record(allocator->stream());
  EXPECT_FALSE(computed.Test());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // which is for kernels of the caller
  std::memset(pinned, 0, kBytes);
  // Another stream takes it over.
  other.ref().WaitFor(computed);
  copy(pinned, b, cudaMemcpyDeviceToHost, other.ref());
  CudaEvent copied(CudaEvent::Timing::kOn);
  copied.Record(other.ref());
  EXPECT_EQ(pinned[7], 0.0f);
  copied.Synchronize();
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(pinned[i], 2.0f * static_cast<float>(i));
  EXPECT_TRUE(computed.Test());
  EXPECT_GE(CudaEvent::MillisecondsBetween(computed, copied), 0.0f);
  pinned_allocator->Deallocate(pinned, kBytes);
  allocator->Deallocate(a, kBytes);
  allocator->Deallocate(b, kBytes);
}

}  // namespace
}  // namespace weft
