#ifndef WEFT_TESTS_CUDA_EMULATOR_EMULATOR_H_
#define WEFT_TESTS_CUDA_EMULATOR_EMULATOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace cuda_emulator {

// What the machine is to look like, for the whole process, as with CUDA itself. Set it before the device is
// first used, or while no stream has work.
struct Machine {
  bool has_driver = true;
  int num_devices = 1;
  int64_t memory_bytes = int64_t{4} << 30;  // a device
  int compute_capability = 90;
  int shared_bytes = 227 << 10;  // a block may have
};
void SetMachine(const Machine& machine);

// The next call of that name fails with `error` and does nothing: FailNext("cudaMalloc", ...).
void FailNext(const std::string& call, cudaError_t error);
// All calls of that name do so from now on, as on a device that is lost; with cudaSuccess none any more.
void FailAlways(const std::string& call, cudaError_t error);

// Bytes that cudaMalloc has handed out on all devices and not taken back, and how often it was asked.
int64_t LiveBytes();
int64_t NumMallocs();

// `told` hears of memory that cudaFree takes back, with the emulator locked, on the thread that calls it; null: nobody does.
void SetOnFree(std::function<void(const void* data)> told);

// Issues to `stream` an operation that is over once `ready` returns true: a transfer that needs others. It is
// called when the stream has come to it, again and again, from any thread that waits, with the emulator
// locked; it issues nothing. NotifyReady says that it may have another answer now.
cudaError_t IssueWhenReady(cudaStream_t stream, std::function<bool()> ready);
void NotifyReady();

// A mistake to plant: on device 0 either the stream that was made first, which is the rank's own, leaves out its waits
// for events of others, or the others leave out theirs. A stream that has left out a wait, and what waits for it from then on,
// runs as soon as it can, where streams run when they are waited for otherwise; the device's others run only then, or where
// nothing else can go on. Streams that wait from then on for the one that should have been waited for do not move it, either.
enum class LeftOut { kNothing, kWaitsOfFirst, kWaitsOfOthers };
// With `only` above -1 these are the waits of one stream for one other alone: pairs of that kind are counted from 0, in the order
// of their first waits. With `nth` above -1, too, it is one wait of the pair, from 0.
void LeaveOutWaits(LeftOut waits, int64_t only = -1, int64_t nth = -1);
// Plants it anew for each of up to ten runs, until one shows it: a run alone may not, since what was not waited for may have
// come by then where ranks are threads. Whether one did.
bool ShowsInSomeRun(LeftOut waits, int64_t only, const std::function<bool()>& run_shows_it);
// How many were left out since then, and how many pairs there were.
int64_t NumLeftOut();
int64_t NumWaitingPairs();
// Of each wait of a pair since then, in order: whether it orders anything by itself. It does not where the awaited had run by
// then, or was waited for before, if need be through other streams; nor where the reader did nothing before it waited for
// something that comes behind the same.
std::vector<bool> OrderingWaits(int64_t pair);

// Kernels that have run, and operations that wait in streams.
int64_t NumKernels();
int64_t NumPending();

// Calls on a stream, an event or memory of another device than the calling thread's. With CUDA each may make a context on the thread's.
int64_t NumCallsFromOtherDevices();

// Events that live, and how often one was asked for (cudaEventQuery).
int64_t NumEvents();
int64_t NumEventQueries();

}  // namespace cuda_emulator

#endif  // WEFT_TESTS_CUDA_EMULATOR_EMULATOR_H_
