#ifndef WEFT_RUNTIME_DEVICE_CUDA_STREAM_H_
#define WEFT_RUNTIME_DEVICE_CUDA_STREAM_H_

#include <cuda_runtime.h>

namespace weft {

class CudaEvent;

// A borrowed stream: work issued to it runs in the order issued, after the call returns.
class CudaStreamRef {
 public:
  CudaStreamRef() = default;
  explicit CudaStreamRef(cudaStream_t handle) : handle_(handle) {}

  cudaStream_t handle() const { return handle_; }

  // What is issued from now on waits for `event`. Does not wait itself.
  void WaitFor(const CudaEvent& event) const;

  // Waits until all that has been issued is done.
  // Errors: those of the work too.
  void Synchronize() const;

 private:
  cudaStream_t handle_ = nullptr;
};

// Owns a stream of the current device, which does not wait for the default stream.
class CudaStream {
 public:
  // With kGreatest, blocks of its kernels go before those of other streams that wait for room on the device.
  enum class Priority { kDefault, kGreatest };

  explicit CudaStream(Priority priority = Priority::kDefault);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  CudaStreamRef ref() const { return CudaStreamRef(handle_); }

 private:
  cudaStream_t handle_ = nullptr;
};

// A point in a stream. One that was never recorded counts as done.
class CudaEvent {
 public:
  enum class Timing { kOff, kOn };  // with kOff waiting for it costs less

  explicit CudaEvent(Timing timing = Timing::kOff);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t handle() const { return handle_; }

  void Record(CudaStreamRef stream);
  // True if the work before the point is done.
  // Errors: that work's. Never waits.
  bool Test() const;
  // Waits until it is.
  void Synchronize() const;

  // Both with Timing::kOn and done.
  static float MillisecondsBetween(const CudaEvent& begin, const CudaEvent& end);

 private:
  cudaEvent_t handle_ = nullptr;
};

// Makes `device` the calling thread's, for good: what a thread that serves one rank begins with.
// Errors: as CheckCuda.
void SetCudaDevice(int device);

// Makes `device` the calling thread's while it lives. A thread that has had none keeps it: CUDA says 0 of such a thread, and to
// go back there would make a context on GPU 0, which takes memory that belongs to another process's rank.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool goes_back_ = false;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_CUDA_STREAM_H_
