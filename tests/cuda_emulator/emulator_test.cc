#include "tests/cuda_emulator/emulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace {

class Stream {
 public:
  Stream() { cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(handle_); }
  cudaStream_t get() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

template <class... Parameters, class... Arguments>
cudaError_t Launch(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  cudaLaunchConfig_t config;
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

__global__ void Iota(int* out) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += block * 1000 + thread;
}

TEST(EmulatorTest, EveryThreadRunsOnceInItsPlace) {
  const Stream stream;
  std::vector<int> out(2 * 3 * 2 * (4 * 2 * 3), 0);
  ASSERT_EQ(Launch(stream.get(), dim3(2, 3, 2), dim3(4, 2, 3), &Iota, out.data()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  for (int i = 0; i < static_cast<int>(out.size()); ++i) EXPECT_EQ(out[i], i / 24 * 1000 + i % 24);
}

// A tree in shared memory and one by shuffles: wrong if a barrier does not hold threads back.
__global__ void BlockSum(const int* in, int* tree_sum, int* warp_sum) {
  __shared__ int parts[128];
  parts[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  for (int step = 64; step > 0; step /= 2) {
    if (threadIdx.x < static_cast<unsigned>(step)) parts[threadIdx.x] += parts[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) *tree_sum = parts[0];
  int sum = in[threadIdx.x];
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = sum;
}

TEST(EmulatorTest, BarriersAndShuffles) {
  const Stream stream;
  std::vector<int> in(128);
  std::iota(in.begin(), in.end(), 1);
  int tree_sum = 0;
  std::vector<int> warp_sum(4, 0);
  ASSERT_EQ(Launch(stream.get(), 1, 128, &BlockSum, in.data(), &tree_sum, warp_sum.data()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(tree_sum, 128 * 129 / 2);
  EXPECT_EQ(warp_sum, (std::vector<int>{528, 1552, 2576, 3600}));
}

// The same without its barriers.
__global__ void BrokenSum(const int* in, int* out) {
  __shared__ int parts[128];
  parts[threadIdx.x] = in[threadIdx.x];
  for (int step = 64; step > 0; step /= 2) {
    if (threadIdx.x < static_cast<unsigned>(step)) parts[threadIdx.x] += parts[threadIdx.x + step];
  }
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}

TEST(EmulatorTest, AMissingBarrierShows) {
  const Stream stream;
  const std::vector<int> in(128, 1);
  std::vector<int> out(2, 0);
  ASSERT_EQ(Launch(stream.get(), 2, 128, &BrokenSum, in.data(), out.data()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_TRUE(out[0] != 128 || out[1] != 128);
}

__global__ void Uneven() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncwarp();
    if (threadIdx.x == 32) __syncthreads();
    if (threadIdx.x == 33) __syncwarp();
  }
}

TEST(EmulatorTest, ABlockThatHangsIsAnError) {
  const Stream stream;
  ASSERT_EQ(Launch(stream.get(), 1, 64, &Uneven), cudaSuccess);
  EXPECT_THROW(cudaStreamSynchronize(stream.get()), std::logic_error);
}

// The allocator gives the address of a stream that is gone to the next: what waits for the one does not wait for the other.
TEST(EmulatorTest, AStreamIsNotTheOneThatWasThereBefore) {
  const Stream reader;
  cudaEvent_t done = nullptr;
  cudaEvent_t issued = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&issued, cudaEventDisableTiming), cudaSuccess);
  const int a = 1;
  int b = 0;
  for (int i = 0; i < 4; ++i) {
    const Stream copies;
    ASSERT_EQ(cudaEventRecord(issued, reader.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(copies.get(), issued), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(&b, &a, sizeof(a), cudaMemcpyDeviceToDevice, copies.get()), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(done), cudaSuccess);  // not recorded, or of a stream that is gone
    ASSERT_EQ(cudaEventRecord(done, copies.get()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(reader.get(), done), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamSynchronize(reader.get()), cudaSuccess);
  EXPECT_EQ(cuda_emulator::NumPending(), 0);
  cudaEventDestroy(done);
  cudaEventDestroy(issued);
}

TEST(EmulatorTest, WorkWaitsForWhoWaitsForIt) {
  const Stream first;
  const Stream second;
  int a = 1;
  int b = 0;
  ASSERT_EQ(cudaMemcpyAsync(&b, &a, sizeof(a), cudaMemcpyDeviceToDevice, first.get()), cudaSuccess);
  EXPECT_EQ(b, 0);
  EXPECT_EQ(cuda_emulator::NumPending(), 1);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, first.get()), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  ASSERT_EQ(cudaStreamWaitEvent(second.get(), event), cudaSuccess);
  int c = 0;
  ASSERT_EQ(cudaMemcpyAsync(&c, &b, sizeof(b), cudaMemcpyDeviceToDevice, second.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second.get()), cudaSuccess);
  EXPECT_EQ(c, 1);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  cudaEventDestroy(event);
}

// Of three waits the first is followed by one for more, and the third has been made before.
TEST(EmulatorTest, SingleWaitsAreToldApartAndLeftOut) {
  using cuda_emulator::LeftOut;
  const Stream reader;  // the device's first
  const Stream source;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const auto run = [&](int64_t only, int64_t nth) {
    cuda_emulator::LeaveOutWaits(LeftOut::kWaitsOfFirst, only, nth);
    const int values[] = {1, 2};
    int made = 0, read = 0;
    for (const int& value : values) {
      cudaMemcpyAsync(&made, &value, sizeof(made), cudaMemcpyDeviceToDevice, source.get());
      cudaEventRecord(event, source.get());
      cudaStreamWaitEvent(reader.get(), event);
    }
    cudaMemcpyAsync(&read, &made, sizeof(read), cudaMemcpyDeviceToDevice, reader.get());
    cudaStreamWaitEvent(reader.get(), event);
    cudaMemcpyAsync(&read, &read, 0, cudaMemcpyDeviceToDevice, reader.get());
    cudaStreamSynchronize(reader.get());
    cudaStreamSynchronize(source.get());
    return read;
  };
  EXPECT_EQ(run(/*only=*/1000, /*nth=*/-1), 2);
  EXPECT_EQ(cuda_emulator::OrderingWaits(0), (std::vector<bool>{false, true, false}));
  const int seen[] = {2, 1, 2};
  for (int nth = 0; nth < 3; ++nth) {
    EXPECT_EQ(run(/*only=*/0, nth), seen[nth]) << nth;
    EXPECT_EQ(cuda_emulator::NumLeftOut(), 1);
  }
  cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
  cudaEventDestroy(event);
}

TEST(EmulatorTest, HostMemoryIsTakenAtOnceAndDeviceMemoryBeginsAsNan) {
  const Stream stream;
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 8), cudaSuccess);
  EXPECT_TRUE(std::isnan(static_cast<float*>(data)[1]));
  float value = 2.0f;
  ASSERT_EQ(cudaMemcpyAsync(data, &value, 4, cudaMemcpyHostToDevice, stream.get()), cudaSuccess);
  value = 3.0f;
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(*static_cast<float*>(data), 2.0f);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
}

TEST(EmulatorTest, FailuresOnOrder) {
  void* data = nullptr;
  cuda_emulator::FailNext("cudaMalloc", cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&data, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&data, 8), cudaSuccess);
  cudaFree(data);
  const Stream stream;
  EXPECT_EQ(Launch(stream.get(), 1, 2048, &Uneven), cudaErrorInvalidValue);
  EXPECT_EQ(Launch(stream.get(), 0, 32, &Uneven), cudaErrorInvalidValue);
}

}  // namespace
