#ifndef WEFT_TESTS_CUDA_EMULATOR_MACHINE_H_
#define WEFT_TESTS_CUDA_EMULATOR_MACHINE_H_

#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/emulator.h"

// Operations of a stream that have not run. `num_issued` counts them all: the place of an event in it.
//
// Lifetime: its handle is used again only when nothing speaks of it any more: events and waits that outlive it own it, as
//           another stream's places are none of theirs.
struct cudaStreamOfEmulator : std::enable_shared_from_this<cudaStreamOfEmulator> {
  struct Operation {
    std::function<bool()> ready;  // null: always
    std::function<void()> run;
  };
  int device = 0;
  int priority = 0;
  bool is_first = false;    // of its device's that live
  bool leaves_out = false;  // waits, see LeaveOutWaits
  bool comes_late = false;  // a wait for it was left out
  int64_t ahead_from = -1;  // the place from which it runs ahead; -1: it does not
  std::deque<Operation> operations;
  int64_t num_issued = 0;
  int64_t num_done = 0;
  int64_t awaited = 0;  // the last place that somebody waits for
  // Where others stand, at least, when what is issued now runs; by their ids.
  int64_t id = 0;
  std::map<int64_t, int64_t> seen;
  int64_t num_idle_issued = 0;  // of num_issued: waits, and events that take times
};

struct cudaEventOfEmulator {
  bool has_time = false;
  std::shared_ptr<cudaStreamOfEmulator> stream = nullptr;  // null: not recorded, which counts as done
  int64_t place = 0;
  std::map<int64_t, int64_t> seen;  // the stream's, when it was recorded
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
};

namespace cuda_emulator {

struct Allocation {
  int device = 0;
  size_t num_bytes = 0;
};

// The waits of one stream for another, see LeaveOutWaits.
struct WaitingPair {
  std::shared_ptr<cudaStreamOfEmulator> reader, source;
  std::vector<bool> orders = {};  // of each wait: whether it orders anything, as far as is known
  int64_t place = 0;              // that it waited for last
  int64_t num_work_before = 0;    // what the reader had been given to do, when it did
};

// All of it under one lock: operations of all devices run one at a time.
struct Cuda {
  std::recursive_mutex mutex;
  std::condition_variable_any changed;  // something may be ready that was not
  Machine machine;
  std::map<std::string, cudaError_t> failures;          // of the next call
  std::map<std::string, cudaError_t> lasting_failures;  // of every call
  std::map<void*, Allocation> allocations;
  std::map<const char*, size_t> pinned;  // memory of the host, by its beginning
  std::map<cudaStream_t, std::shared_ptr<cudaStreamOfEmulator>> streams;  // those that live
  LeftOut left_out = LeftOut::kNothing;
  int64_t left_out_only = -1;
  int64_t left_out_nth = -1;
  std::vector<WaitingPair> waiting_pairs;
  int64_t num_streams = 0;  // so far
  int64_t num_left_out = 0;
  bool runs_ahead = false;       // RunAhead is at work: nobody is pushed
  bool pushes_late = false;      // what comes late may go on, too
  int num_idle_queries = 0;      // one behind the other that moved nothing
  std::map<int, int> num_stuck;  // threads in AwaitPlace for which nothing moves, by device
  int64_t live_bytes = 0;
  int64_t num_mallocs = 0;
  std::function<void(const void*)> on_free;  // null: nobody
  int64_t num_kernels = 0;
  int64_t num_calls_from_other_devices = 0;
  int64_t num_events = 0;
  int64_t num_event_queries = 0;
};

Cuda& TheCuda();

using Lock = std::unique_lock<std::recursive_mutex>;

// The calling thread's.
extern thread_local int current_device;
extern thread_local cudaError_t last_error;

// What follows is called with the lock held.

// `error`, which cudaGetLastError tells too.
cudaError_t Return(cudaError_t error);

// What goes wrong before `call` does anything; cudaSuccess if nothing does.
cudaError_t Enter(const char* call);

// Takes note of a call on something of `device`.
void NoteDevice(int device);

// Adds an operation to a stream, which runs when somebody waits for it and `ready`, if there is one, says so.
cudaError_t Issue(cudaStream_t stream, std::function<void()> run, std::function<bool()> ready = nullptr);

// Blocks until `stream` has come to `place`. What is not ready is awaited with the lock released, while other
// streams go on.
void AwaitPlace(Lock& lock, cudaStream_t stream, int64_t place);

// As a device's own calls that wait for all of its work.
void AwaitDevice(Lock& lock, int device);

// Runs the operations of `stream` up to its `place`-th, as far as they are ready. True if it got there.
bool Advance(cudaStream_t stream, int64_t place);

// One step of every stream: a device goes on whether or not its own rank waits for it. True if any moved.
bool AdvanceOthers();

// The same for somebody who asks again and again, and would for ever where what it asks for comes late.
void AdvanceForQuery(cudaStream_t stream);

bool IsDone(cudaEvent_t event);

// What fresh and freed memory holds in each byte: NaN in every floating type.
inline constexpr int kPoison = 0xff;

// Such memory.
cudaError_t AllocateBytes(void** data, size_t num_bytes);

// What a device's live allocations take.
int64_t DeviceBytes(int device);

}  // namespace cuda_emulator

#endif  // WEFT_TESTS_CUDA_EMULATOR_MACHINE_H_
