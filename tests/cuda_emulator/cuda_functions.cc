// CUDA's functions, by its names, which lie in no namespace.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>

#include "tests/cuda_emulator/machine.h"

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
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
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
      *value = TheCuda().machine.shared_bytes;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device) & 0xff);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU %d", device);
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
  NoteDevice(found->second.device);
  AwaitDevice(lock, found->second.device);
  found = cuda.allocations.find(data);
  if (cuda.on_free != nullptr) cuda.on_free(data);
  cuda.live_bytes -= static_cast<int64_t>(found->second.num_bytes);
  std::memset(data, kPoison, found->second.num_bytes);
  cuda.allocations.erase(found);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t num_bytes) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaMallocHost"); error != cudaSuccess) return error;
  if (const cudaError_t error = AllocateBytes(data, num_bytes); error != cudaSuccess) return error;
  if (*data != nullptr) TheCuda().pinned[static_cast<const char*>(*data)] = num_bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  Lock lock(TheCuda().mutex);
  AwaitDevice(lock, current_device);
  TheCuda().pinned.erase(static_cast<const char*>(data));
  std::free(data);
  return cudaSuccess;
}

static bool IsPinned(const void* data) {
  const auto& pinned = TheCuda().pinned;
  const auto after = pinned.upper_bound(static_cast<const char*>(data));
  return after != pinned.begin() &&
         static_cast<const char*>(data) < std::prev(after)->first + std::prev(after)->second;
}

// As CUDA: what comes from the host's memory is taken at once, but from pinned memory when the stream comes to it.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t num_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaMemcpyAsync"); error != cudaSuccess) return error;
  if (kind != cudaMemcpyHostToDevice || IsPinned(from)) {
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

static void MakeStream(cudaStream_t* stream, int priority) {
  auto& streams = TheCuda().streams;
  auto made = std::make_shared<cudaStreamOfEmulator>();
  made->device = current_device;
  made->priority = priority;
  made->id = TheCuda().num_streams++;
  made->is_first = std::none_of(streams.begin(), streams.end(),
                                [](const auto& other) { return other.second->device == current_device; });
  *stream = made.get();
  streams[*stream] = std::move(made);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaStreamCreateWithFlags"); error != cudaSuccess) return error;
  MakeStream(stream, /*priority=*/0);
  return cudaSuccess;
}

// Told, but of no effect.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaStreamCreateWithPriority"); error != cudaSuccess) return error;
  MakeStream(stream, priority);
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  Lock lock(TheCuda().mutex);
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  AwaitPlace(lock, stream, stream->num_issued);
  TheCuda().streams.erase(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaStreamSynchronize"); error != cudaSuccess) return error;
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  AwaitPlace(lock, stream, stream->num_issued);
  return cudaSuccess;
}

// A caller that asks again and again sees the stream move on.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock(TheCuda().mutex);
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  if (stream->num_done == stream->num_issued) return cudaSuccess;
  AdvanceForQuery(stream);
  return Return(cudaErrorNotReady);
}

// The place of the stream `id` that whoever waits for `event` comes behind; 0: none.
static int64_t PlaceBehind(const cudaEventOfEmulator& event, int64_t id) {
  if (event.stream->id == id) return event.place;
  const auto seen = event.seen.find(id);
  return seen == event.seen.end() ? 0 : seen->second;
}

// Takes note of a wait of `reader` for the place of `event`. Whether it is to be left out, see LeaveOutWaits.
static bool IsLeftOut(const std::shared_ptr<cudaStreamOfEmulator>& reader, const cudaEventOfEmulator& event) {
  Cuda& cuda = TheCuda();
  const LeftOut kind = reader->is_first ? LeftOut::kWaitsOfFirst : LeftOut::kWaitsOfOthers;
  if (reader->device != 0 || cuda.left_out != kind) return false;
  auto& pairs = cuda.waiting_pairs;
  const int64_t num_work = reader->num_issued - reader->num_idle_issued;
  for (WaitingPair& before : pairs) {
    const bool covers = before.reader == reader && before.num_work_before == num_work &&
                        PlaceBehind(event, before.source->id) >= before.place;
    if (covers) before.orders.back() = false;
  }
  const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const WaitingPair& pair) {
    return pair.reader == reader && pair.source == event.stream;
  });
  const int64_t number = found - pairs.begin();
  WaitingPair& pair = found == pairs.end() ? pairs.emplace_back(WaitingPair{reader, event.stream}) : *found;
  pair.place = event.place;
  pair.num_work_before = num_work;
  const auto seen = reader->seen.find(event.stream->id);
  const bool is_seen = seen != reader->seen.end() && seen->second >= event.place;
  pair.orders.push_back(!is_seen && event.stream->num_done < event.place);
  const int64_t nth = static_cast<int64_t>(pair.orders.size()) - 1;
  return (cuda.left_out_only < 0 || cuda.left_out_only == number) &&
         (cuda.left_out_nth < 0 || cuda.left_out_nth == nth);
}

// What is issued to `reader` from now on comes behind `event`, and what that came behind.
static void SeeEvent(cudaStreamOfEmulator& reader, const cudaEventOfEmulator& event) {
  const auto see = [&](int64_t id, int64_t place) {
    int64_t& seen = reader.seen[id];
    seen = std::max(seen, place);
  };
  see(event.stream->id, event.place);
  for (const auto& [id, place] : event.seen) see(id, place);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaStreamWaitEvent"); error != cudaSuccess) return error;
  if (event->stream == nullptr) return cudaSuccess;
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  Cuda& cuda = TheCuda();
  const std::shared_ptr<cudaStreamOfEmulator> reader = stream->shared_from_this();
  const bool is_left_out = IsLeftOut(reader, *event);
  const bool is_behind = event->stream->ahead_from >= 0 && event->place > event->stream->ahead_from;
  if (is_left_out) {
    stream->leaves_out = true;
    event->stream->comes_late = true;
    if (!event->stream->leaves_out) event->stream->ahead_from = -1;
  }
  const bool runs_ahead = is_left_out || (is_behind && !stream->comes_late);
  if (runs_ahead && stream->ahead_from < 0) stream->ahead_from = stream->num_issued;
  if (is_left_out) {
    ++cuda.num_left_out;
    return cudaSuccess;
  }
  SeeEvent(*stream, *event);
  ++stream->num_idle_issued;
  return Issue(
      stream, [] {},
      [source = event->stream, place = event->place, is_late = event->stream->comes_late] {
        Cuda& cuda = TheCuda();
        if (cuda.streams.count(source.get()) == 0 || source->num_done >= place) return true;
        if (cuda.runs_ahead || (is_late && !cuda.pushes_late)) return false;
        source->awaited = std::max(source->awaited, place);
        return Advance(source.get(), place);
      });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaEventCreateWithFlags"); error != cudaSuccess) return error;
  *event = new cudaEventOfEmulator;
  ++TheCuda().num_events;
  (*event)->has_time = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Lock lock(TheCuda().mutex);
  delete event;
  --TheCuda().num_events;
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
  event->stream = stream->shared_from_this();
  if (event->has_time) ++stream->num_idle_issued;
  event->place = stream->num_issued;
  event->seen = stream->seen;
  event->time = std::move(time);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Lock lock(TheCuda().mutex);
  ++TheCuda().num_event_queries;
  if (const cudaError_t error = Enter("cudaEventQuery"); error != cudaSuccess) return error;
  if (event->stream != nullptr) NoteDevice(event->stream->device);
  if (IsDone(event)) return cudaSuccess;
  AdvanceForQuery(event->stream.get());
  return Return(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Lock lock(TheCuda().mutex);
  if (const cudaError_t error = Enter("cudaEventSynchronize"); error != cudaSuccess) return error;
  if (event->stream != nullptr) NoteDevice(event->stream->device);
  if (!IsDone(event)) AwaitPlace(lock, event->stream.get(), event->place);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Lock lock(TheCuda().mutex);
  if (!begin->has_time || !end->has_time || begin->time == nullptr || end->time == nullptr) {
    return Return(cudaErrorInvalidValue);
  }
  if (!IsDone(begin) || !IsDone(end)) return Return(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(*end->time - *begin->time).count();
  return cudaSuccess;
}
