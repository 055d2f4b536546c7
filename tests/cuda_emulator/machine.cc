#include "tests/cuda_emulator/machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "tests/cuda_emulator/block_runner.h"

namespace cuda_emulator {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

Cuda& TheCuda() {
  static Cuda* const cuda = new Cuda;
  return *cuda;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void NoteDevice(int device) {
  if (device != current_device) ++TheCuda().num_calls_from_other_devices;
}

cudaError_t Enter(const char* call) {
  Cuda& cuda = TheCuda();
  if (!cuda.machine.has_driver) return Return(cudaErrorInsufficientDriver);
  if (cuda.machine.num_devices == 0) return Return(cudaErrorNoDevice);
  const auto lasting = cuda.lasting_failures.find(call);
  if (lasting != cuda.lasting_failures.end()) return Return(lasting->second);
  const auto planned = cuda.failures.find(call);
  if (planned == cuda.failures.end()) return cudaSuccess;
  const cudaError_t error = planned->second;
  cuda.failures.erase(planned);
  return Return(error);
}

namespace {

// So that a mistake does not depend on which thread happens to move a stream when: on the device whose waits are left out,
// a stream goes on only as far as somebody waits for it, unless it runs ahead.
bool ComesLate(cudaStream_t stream) {
  const Cuda& cuda = TheCuda();
  if (cuda.left_out == LeftOut::kNothing || stream->device != 0 || stream->ahead_from >= 0) return false;
  if (cuda.pushes_late || (cuda.left_out == LeftOut::kWaitsOfFirst && stream->is_first)) return false;
  return stream->num_done >= stream->awaited;
}

// While it lives, `flag` is set.
class Flagged {
 public:
  explicit Flagged(bool* flag) : flag_(flag) { *flag_ = true; }
  ~Flagged() { *flag_ = false; }
  Flagged(const Flagged&) = delete;
  Flagged& operator=(const Flagged&) = delete;

 private:
  bool* const flag_;
};

// Streams that have left out a wait, and those that wait for them, go on as far as they can without pushing others.
void RunAhead() {
  Cuda& cuda = TheCuda();
  if (cuda.num_left_out == 0 || cuda.runs_ahead) return;
  const Flagged flagged(&cuda.runs_ahead);
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [stream, owned] : cuda.streams) {
      if (stream->ahead_from < 0) continue;
      const int64_t before = stream->num_done;
      Advance(stream, stream->num_issued);
      moved |= stream->num_done != before;
    }
  }
}

// Where nothing else moves: one step of what comes late, too.
bool PushLate() {
  Cuda& cuda = TheCuda();
  if (cuda.left_out == LeftOut::kNothing) return false;
  const Flagged flagged(&cuda.pushes_late);
  return AdvanceOthers();
}

// Every device that has streams has somebody who waits in vain.
bool AllAreStuck() {
  Cuda& cuda = TheCuda();
  return std::all_of(cuda.streams.begin(), cuda.streams.end(),
                     [&](const auto& stream) { return cuda.num_stuck[stream.second->device] > 0; });
}

}  // namespace

bool Advance(cudaStream_t stream, int64_t place) {
  while (stream->num_done < place) {
    if (ComesLate(stream)) return false;
    auto& next = stream->operations.front();
    if (next.ready != nullptr && !next.ready()) return false;
    const std::function<void()> run = std::move(next.run);
    stream->operations.pop_front();
    ++stream->num_done;
    run();
  }
  return true;
}

bool AdvanceOthers() {
  bool moved = false;
  for (const auto& [stream, owned] : TheCuda().streams) {
    const int64_t before = stream->num_done;
    if (before < stream->num_issued) Advance(stream, before + 1);
    moved |= stream->num_done != before;
  }
  return moved;
}

void AdvanceForQuery(cudaStream_t stream) {
  constexpr int kMostIdle = 200;
  int& num_idle = TheCuda().num_idle_queries;
  const int64_t before = stream->num_done;
  const bool moved = Advance(stream, before + 1) || stream->num_done != before || AdvanceOthers();
  num_idle = moved ? 0 : num_idle + 1;
  if (num_idle < kMostIdle) return;
  PushLate();
  num_idle = 0;
}

void AwaitPlace(Lock& lock, cudaStream_t stream, int64_t place) {
  constexpr std::chrono::minutes kPatience(2);
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  const std::shared_ptr<cudaStreamOfEmulator> owned = stream->shared_from_this();
  constexpr int kMostIdle = 5;
  stream->awaited = std::max(stream->awaited, place);
  int num_idle = 0;
  while (TheCuda().streams.count(stream) != 0 && !Advance(stream, place)) {
    if (AdvanceOthers()) {
      num_idle = 0;
      continue;
    }
    if (std::chrono::steady_clock::now() > give_up) throw std::logic_error("a stream waits for ever");
    ++TheCuda().num_stuck[stream->device];
    const bool pushed = (AllAreStuck() || num_idle >= kMostIdle) && PushLate();
    if (!pushed) {
      TheCuda().changed.wait_for(lock, std::chrono::milliseconds(20));
      ++num_idle;
    }
    --TheCuda().num_stuck[stream->device];
  }
}

void AwaitDevice(Lock& lock, int device) {
  const auto streams = TheCuda().streams;
  for (const auto& [stream, owned] : streams) {
    if (TheCuda().streams.count(stream) != 0 && stream->device == device) {
      AwaitPlace(lock, stream, stream->num_issued);
    }
  }
}

cudaError_t Issue(cudaStream_t stream, std::function<void()> run, std::function<bool()> ready) {
  if (TheCuda().streams.count(stream) == 0) return Return(cudaErrorInvalidValue);
  NoteDevice(stream->device);
  stream->operations.push_back({std::move(ready), std::move(run)});
  ++stream->num_issued;
  RunAhead();
  TheCuda().changed.notify_all();
  return cudaSuccess;
}

bool IsDone(cudaEvent_t event) {
  return event->stream == nullptr || TheCuda().streams.count(event->stream.get()) == 0 ||
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

void SetMachine(const Machine& machine) {
  Lock lock(TheCuda().mutex);
  TheCuda().machine = machine;
}

void FailNext(const std::string& call, cudaError_t error) {
  Lock lock(TheCuda().mutex);
  TheCuda().failures[call] = error;
}

void FailAlways(const std::string& call, cudaError_t error) {
  Lock lock(TheCuda().mutex);
  TheCuda().lasting_failures.erase(call);
  if (error != cudaSuccess) TheCuda().lasting_failures[call] = error;
}

int64_t LiveBytes() {
  Lock lock(TheCuda().mutex);
  return TheCuda().live_bytes;
}

void SetOnFree(std::function<void(const void* data)> told) {
  Lock lock(TheCuda().mutex);
  TheCuda().on_free = std::move(told);
}

int64_t NumMallocs() {
  Lock lock(TheCuda().mutex);
  return TheCuda().num_mallocs;
}

void LeaveOutWaits(LeftOut waits, int64_t only, int64_t nth) {
  Lock lock(TheCuda().mutex);
  TheCuda().left_out = waits;
  TheCuda().left_out_only = only;
  TheCuda().left_out_nth = nth;
  TheCuda().waiting_pairs.clear();
  TheCuda().num_left_out = 0;
  for (const auto& [stream, owned] : TheCuda().streams) {
    stream->leaves_out = stream->comes_late = false;
    stream->ahead_from = -1;
  }
}

int64_t NumWaitingPairs() {
  Lock lock(TheCuda().mutex);
  return static_cast<int64_t>(TheCuda().waiting_pairs.size());
}

std::vector<bool> OrderingWaits(int64_t pair) {
  Lock lock(TheCuda().mutex);
  return TheCuda().waiting_pairs.at(pair).orders;
}

bool ShowsInSomeRun(LeftOut waits, int64_t only, const std::function<bool()>& run_shows_it) {
  constexpr int kMostRuns = 10;
  for (int run = 0; run < kMostRuns; ++run) {
    LeaveOutWaits(waits, only);
    if (run_shows_it()) return true;
  }
  return false;
}

int64_t NumLeftOut() {
  Lock lock(TheCuda().mutex);
  return TheCuda().num_left_out;
}

int64_t NumKernels() {
  Lock lock(TheCuda().mutex);
  return TheCuda().num_kernels;
}

int64_t NumCallsFromOtherDevices() {
  Lock lock(TheCuda().mutex);
  return TheCuda().num_calls_from_other_devices;
}

int64_t NumEvents() {
  Lock lock(TheCuda().mutex);
  return TheCuda().num_events;
}

int64_t NumEventQueries() {
  Lock lock(TheCuda().mutex);
  return TheCuda().num_event_queries;
}

int64_t NumPending() {
  Lock lock(TheCuda().mutex);
  int64_t pending = 0;
  for (const auto& [stream, owned] : TheCuda().streams) pending += stream->num_issued - stream->num_done;
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

cudaError_t AllowSharedBytes(size_t num_bytes) {
  Lock lock(TheCuda().mutex);
  const size_t most = static_cast<size_t>(TheCuda().machine.shared_bytes);
  return num_bytes <= most ? cudaSuccess : Return(cudaErrorInvalidValue);
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
      grid.z > kMostBlocksYZ ||
      config.dynamicSmemBytes > static_cast<size_t>(TheCuda().machine.shared_bytes)) {
    return Return(cudaErrorInvalidValue);
  }
  return Issue(config.stream, [config, thread = std::move(thread)] {
    ++TheCuda().num_kernels;
    RunGrid(config, thread);
  });
}

}  // namespace cuda_emulator
