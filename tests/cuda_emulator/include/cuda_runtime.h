#ifndef WEFT_TESTS_CUDA_EMULATOR_CUDA_RUNTIME_H_
#define WEFT_TESTS_CUDA_EMULATOR_CUDA_RUNTIME_H_

// The part of the CUDA runtime that Weft uses, by CUDA's names, for sources that are compiled to run on the
// CPU: see the README of this folder. What the functions do is documented by CUDA.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "warp_instructions.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one after the other on the thread that waits for the stream.
#define __shared__ static thread_local

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3() = default;
  constexpr dim3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
};
using cudaError_t = cudaError;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
struct cudaDeviceProp {
  char name[256];
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaLaunchAttribute {};
struct cudaStreamOfEmulator;
struct cudaEventOfEmulator;
using cudaStream_t = cudaStreamOfEmulator*;
using cudaEvent_t = cudaEventOfEmulator*;
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0;
constexpr unsigned cudaEventDisableTiming = 2;

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMalloc(void** data, size_t num_bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocHost(void** data, size_t num_bytes);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t num_bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

// Of the thread that runs now.
inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;

namespace cuda_emulator {

char* DynamicShared();
void SyncBlock();
// Every lane of the warp that is still running gives its `value` and gets that of `lane`.
uint64_t Exchange(uint64_t value, int lane);
void SyncWarp();
int CurrentLane();
cudaError_t Launch(const cudaLaunchConfig_t& config, std::function<void()> thread);
cudaError_t AllowSharedBytes(size_t num_bytes);  // dynamic, of a block

template <class T>
T ExchangeValue(T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Exchange(bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_emulator

inline void __syncthreads() { ::cuda_emulator::SyncBlock(); }
inline void __syncwarp(unsigned = 0xffffffffu) { ::cuda_emulator::SyncWarp(); }
// Whole warps and a width of 32 alone.
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return ::cuda_emulator::ExchangeValue(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return ::cuda_emulator::ExchangeValue(value, ::cuda_emulator::CurrentLane() ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
  const int lane = ::cuda_emulator::CurrentLane() + static_cast<int>(delta);
  return ::cuda_emulator::ExchangeValue(value, lane < 32 ? lane : ::cuda_emulator::CurrentLane());
}

template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float normcdff(float x) { return static_cast<float>(std::erfc(-x / std::sqrt(2.0)) / 2); }
inline double normcdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<uint64_t>(x) * y) >> 32);
}
// Blocks run one at a time, and threads switch at barriers alone.
template <class T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}

// Of the one attribute.
template <class T>
cudaError_t cudaFuncSetAttribute(T*, cudaFuncAttribute, int value) {
  return ::cuda_emulator::AllowSharedBytes(static_cast<size_t>(value));
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return ::cuda_emulator::Launch(
      *config, [kernel, values = std::tuple<std::decay_t<Parameters>...>(
                            std::forward<Arguments>(arguments)...)] { std::apply(kernel, values); });
}

#endif  // WEFT_TESTS_CUDA_EMULATOR_CUDA_RUNTIME_H_
