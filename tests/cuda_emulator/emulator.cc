#include "tests/cuda_emulator/emulator.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <vector>

#include "tests/cuda_emulator/block_runner.h"

// Operations of a stream that have not run. `num_issued` counts them all: the place of an event in it.
struct cudaStreamOfEmulator {
  struct Operation {
    std::function<bool()> ready;  // null: always
    std::function<void()> run;
  };
  int device = 0;
  std::deque<Operation> operations;
  int64_t num_issued = 0;
  int64_t num_done = 0;
};

struct cudaEventOfEmulator {
  bool has_time = false;
  cudaStream_t stream = nullptr;  // null: not recorded, which counts as done
  int64_t place = 0;
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
};

namespace cuda_emulator {
namespace {

constexpr size_t kAlignment = 256;
constexpr int kPoison = 0xff;  // NaN in every floating type

struct Allocation {
  int device = 0;
  size_t num_bytes = 0;
};

// All of it under one lock: operations of all devices run one at a time.
struct Cuda {
  std::recursive_mutex mutex;
  std::condition_variable_any changed;  // something may be ready that was not
  Machine machine;
  std::map<std::string, cudaError_t> failures;
  std::map<void*, Allocation> allocations;
  std::set<cudaStream_t> streams;
  int64_t live_bytes = 0;
  int64_t num_mallocs = 0;
  int64_t num_kernels = 0;
};

Cuda& TheCuda() {
  static Cuda* const cuda = new Cuda;
  return *cuda;
}

using Lock = std::unique_lock<std::recursive_mutex>;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// What goes wrong before `call` does anything; cudaSuccess if nothing does.
cudaError_t Enter(const char* call) {
  Cuda& cuda = TheCuda();
  if (!cuda.machine.has_driver) return Return(cudaErrorInsufficientDriver);
  if (cuda.machine.num_devices == 0) return Return(cudaErrorNoDevice);
  const auto planned = cuda.failures.find(call);
  if (planned == cuda.failures.end()) return cudaSuccess;
  const cudaError_t error = planned->second;
  cuda.failures.erase(planned);
  return Return(error);
}

// Runs the operations of `stream` up to its `place`-th, as far as they are ready. True if it got there.
bool Advance(cudaStream_t stream, int64_t place) {
  while (stream->num_done < place) {
    auto& next = stream->operations.front();
    if (next.ready != nullptr && !next.ready()) return false;
    const std::function<void()> run = std::move(next.run);
    stream->operations.pop_front();
    ++stream->num_done;
    run();
  }
  return true;
}

// One step of every stream: a device goes on whether or not its own rank waits for it. True if any moved.
bool AdvanceOthers() {
  bool moved = false;
  for (cudaStream_t stream : TheCuda().streams) {
    const int64_t before = stream->num_done;
    if (before < stream->num_issued) Advance(stream, before + 1);
    moved |= stream->num_done != before;
  }
  return moved;
}

// Blocks until `stream` has come to `place`. What is not ready is awaited with the lock released, while other
// streams go on.
void AwaitPlace(Lock& lock, cudaStream_t stream, int64_t place) {
  constexpr std::chrono::minutes kPatience(2);
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (TheCuda().streams.count(stream) != 0 && !Advance(stream, place)) {
    if (AdvanceOthers()) continue;
    if (std::chrono::steady_clock::now() > give_up) throw std::logic_error("a stream waits for ever");
    TheCuda().changed.wait_for(lock, std::chrono::milliseconds(20));
  }
}

// As a device's own calls that wait for all of its work.
void AwaitDevice(Lock& lock, int device) {
  const std::set<cudaStream_t> streams = TheCuda().streams;
  for (cudaStream_t stream : streams) {
    if (TheCuda().streams.count(stream) != 0 && stream->device == device) {
      AwaitPlace(lock, stream, stream->num_issued);
    }
  }
}

cudaError_t Issue(cudaStream_t stream, std::function<void()> run, std::function<bool()> ready = nullptr) {
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  stream->operations.push_back({std::move(ready), std::move(run)});
  ++stream->num_issued;
  TheCuda().changed.notify_all();
  return cudaSuccess;
}

bool IsDone(cudaEvent_t event) {
  return event->stream == nullptr || TheCuda().streams.count(event->stream) == 0 ||
         event->stream->num_done >= event->place;
}

cudaError_t AllocateBytes(void** data, size_t num_bytes) {
  *data = num_bytes == 0
              ? nullptr
              : std::aligned_alloc(kAlignment, (num_bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (num_bytes != 0 && *data == nullptr) return Return(cudaErrorMemoryAllocation);
  if (*data != nullptr) std::memset(*data, kPoison, num_bytes);
  return cudaSuccess;
}

int64_t DeviceBytes(int device) {
  int64_t bytes = 0;
  for (const auto& [data, allocation] : TheCuda().allocations) {
    if (allocation.device == device) bytes += static_cast<int64_t>(allocation.num_bytes);
  }
  return bytes;
}

}  // namespace

void SetMachine(const Machine& machine) {
  Lock lock(TheCuda().mutex);
  TheCuda().machine = machine;
}

void FailNext(const std::string& call, cudaError_t error) {
  Lock lock(TheCuda().mutex);
  TheCuda().failures[call] = error;
}

int64_t LiveBytes() {
  Lock lock(TheCuda().mutex);
  return TheCuda().live_bytes;
}

int64_t NumMallocs() {
  Lock lock(TheCuda().mutex);
  return TheCuda().num_mallocs;
}

int64_t NumKernels() {
  Lock lock(TheCuda().mutex);
  return TheCuda().num_kernels;
}

int64_t NumPending() {
  Lock lock(TheCuda().mutex);
  int64_t pending = 0;
  for (cudaStream_t stream : TheCuda().streams) pending += stream->num_issued - stream->num_done;
  return pending;
}

cudaError_t IssueWhenReady(cudaStream_t stream, std::function<bool()> ready) {
  Lock lock(TheCuda().mutex);
  return Issue(
      stream, [] {}, std::move(ready));
}

void NotifyReady() {
  Lock lock(TheCuda().mutex);
  TheCuda().changed.notify_all();
}

cudaError_t Launch(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaLaunchKernel"); error != cudaSuccess) return error;
  const dim3& block = config.blockDim;
  const dim3& grid = config.gridDim;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  constexpr uint64_t kMostThreads = 1024;
  constexpr unsigned kMostBlocksYZ = 65535;
  if (threads == 0 || threads > kMostThreads || blocks == 0 || grid.y > kMostBlocksYZ ||
      grid.z > kMostBlocksYZ) {
    return Return(cudaErrorInvalidValue);
  }
  return Issue(config.stream, [config, thread = std::move(thread)] {
    ++TheCuda().num_kernels;
    RunGrid(config, thread);
  });
}

}  // namespace cuda_emulator

// What follows are CUDA's functions, which lie in no namespace.
using namespace cuda_emulator;  // NOLINT

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "emulated error";
  }
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  Lock lock(TheCuda().mutex);
  *count = 0;
  if (const cudaError_t error = Enter("cudaGetDeviceCount"); error != cudaSuccess) return error;
  *count = TheCuda().machine.num_devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaSetDevice"); error != cudaSuccess) return error;
  if (device < 0 || device >= TheCuda().machine.num_devices) return Return(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  Lock lock(TheCuda().mutex);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 2;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = TheCuda().machine.compute_capability / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = TheCuda().machine.compute_capability % 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 << 10;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device) & 0xff);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaDeviceSynchronize"); error != cudaSuccess) return error;
  AwaitDevice(lock, current_device);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Lock lock(TheCuda().mutex);
  *total = static_cast<size_t>(TheCuda().machine.memory_bytes);
  *free = *total - static_cast<size_t>(DeviceBytes(current_device));
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t num_bytes) {
  Lock lock(TheCuda().mutex);
  Cuda& cuda = TheCuda();
  ++cuda.num_mallocs;
  if (const cudaError_t error = Enter("cudaMalloc"); error != cudaSuccess) return error;
  if (DeviceBytes(current_device) + static_cast<int64_t>(num_bytes) > cuda.machine.memory_bytes) {
    return Return(cudaErrorMemoryAllocation);
  }
  if (const cudaError_t error = AllocateBytes(data, num_bytes); error != cudaSuccess) return error;
  if (*data != nullptr) cuda.allocations[*data] = {current_device, num_bytes};
  cuda.live_bytes += static_cast<int64_t>(num_bytes);
  return cudaSuccess;
}

// As CUDA, waits for all work of the device.
cudaError_t cudaFree(void* data) {
  Lock lock(TheCuda().mutex);
  if (data == nullptr) return cudaSuccess;
  Cuda& cuda = TheCuda();
  auto found = cuda.allocations.find(data);
  if (found == cuda.allocations.end()) return Return(cudaErrorInvalidValue);
  AwaitDevice(lock, found->second.device);
  found = cuda.allocations.find(data);
  cuda.live_bytes -= static_cast<int64_t>(found->second.num_bytes);
  std::memset(data, kPoison, found->second.num_bytes);
  cuda.allocations.erase(found);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t num_bytes) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaMallocHost"); error != cudaSuccess) return error;
  return AllocateBytes(data, num_bytes);
}

cudaError_t cudaFreeHost(void* data) {
  Lock lock(TheCuda().mutex);
  AwaitDevice(lock, current_device);
  std::free(data);
  return cudaSuccess;
}

// As CUDA for memory that is not pinned: what comes from the host is taken at once.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaMemcpyAsync"); error != cudaSuccess) return error;
  if (kind != cudaMemcpyHostToDevice) {
    return Issue(stream, [=] { std::memcpy(to, from, num_bytes); });
  }
  std::vector<char> staged(static_cast<const char*>(from), static_cast<const char*>(from) + num_bytes);
  return Issue(stream, [to, staged = std::move(staged)] { std::memcpy(to, staged.data(), staged.size()); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t num_bytes, cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaMemsetAsync"); error != cudaSuccess) return error;
  return Issue(stream, [=] { std::memset(to, value, num_bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaStreamCreateWithFlags"); error != cudaSuccess) return error;
  *stream = new cudaStreamOfEmulator;
  (*stream)->device = current_device;
  TheCuda().streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  AwaitPlace(lock, stream, stream->num_issued);
  TheCuda().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaStreamSynchronize"); error != cudaSuccess) return error;
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  AwaitPlace(lock, stream, stream->num_issued);
  return cudaSuccess;
}

// Who asks again and again sees the stream move on.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  if (stream->num_done == stream->num_issued) return cudaSuccess;
  if (!Advance(stream, stream->num_done + 1)) AdvanceOthers();
  return cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaStreamWaitEvent"); error != cudaSuccess) return error;
  if (event->stream == nullptr) return cudaSuccess;
  return Issue(
      stream, [] {},
      [source = event->stream, place = event->place] {
        return TheCuda().streams.count(source) == 0 || Advance(source, place);
      });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaEventCreateWithFlags"); error != cudaSuccess) return error;
  *event = new cudaEventOfEmulator;
  (*event)->has_time = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock(TheCuda().mutex);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaEventRecord"); error != cudaSuccess) return error;
  auto time = std::make_shared<std::chrono::steady_clock::time_point>();
  if (const cudaError_t error = Issue(stream, [time] { *time = std::chrono::steady_clock::now(); });
      error != cudaSuccess) {
    return error;
  }
  event->stream = stream;
  event->place = stream->num_issued;
  event->time = std::move(time);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaEventQuery"); error != cudaSuccess) return error;
  if (IsDone(event)) return cudaSuccess;
  if (!Advance(event->stream, event->stream->num_done + 1)) AdvanceOthers();
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaEventSynchronize"); error != cudaSuccess) return error;
  if (!IsDone(event)) AwaitPlace(lock, event->stream, event->place);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Lock lock(TheCuda().mutex);
  if (!begin->has_time || !end->has_time || begin->time == nullptr || end->time == nullptr) {
    return Return(cudaErrorInvalidValue);
  }
  if (!IsDone(begin) || !IsDone(end)) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(*end->time - *begin->time).count();
  return cudaSuccess;
}
