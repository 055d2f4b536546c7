#include "runtime/device/cuda/stream.h"

#include "runtime/device/cuda/check.h"

namespace weft {
namespace {

// Whether the calling thread has been given one.
thread_local bool has_device = false;

}  // namespace

void CudaStreamRef::WaitFor(const CudaEvent& event) const {
  CheckCuda(cudaStreamWaitEvent(handle_, event.handle(), 0), "cudaStreamWaitEvent");
}

void CudaStreamRef::Synchronize() const {
  CheckCuda(cudaStreamSynchronize(handle_), "cudaStreamSynchronize");
}

CudaStream::CudaStream(Priority priority) {
  if (priority == Priority::kDefault) {
    CheckCuda(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return;
  }
  int least = 0;
  int greatest = 0;
  CheckCuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  CheckCuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, greatest),
            "cudaStreamCreateWithPriority");
}

CudaStream::~CudaStream() { cudaStreamDestroy(handle_); }

CudaEvent::CudaEvent(Timing timing) {
  CheckCuda(
      cudaEventCreateWithFlags(&handle_, timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming),
      "cudaEventCreateWithFlags");
}

CudaEvent::~CudaEvent() { cudaEventDestroy(handle_); }

void CudaEvent::Record(CudaStreamRef stream) {
  CheckCuda(cudaEventRecord(handle_, stream.handle()), "cudaEventRecord");
}

bool CudaEvent::Test() const {
  const cudaError_t state = cudaEventQuery(handle_);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // which is for errors of the caller
    return false;
  }
  CheckCuda(state, "cudaEventQuery");
  return true;
}

void CudaEvent::Synchronize() const { CheckCuda(cudaEventSynchronize(handle_), "cudaEventSynchronize"); }

float CudaEvent::MillisecondsBetween(const CudaEvent& begin, const CudaEvent& end) {
  float milliseconds = 0.0f;
  CheckCuda(cudaEventElapsedTime(&milliseconds, begin.handle_, end.handle_), "cudaEventElapsedTime");
  return milliseconds;
}

void SetCudaDevice(int device) {
  CheckCuda(cudaSetDevice(device), "cudaSetDevice");
  has_device = true;
}

CudaDeviceGuard::CudaDeviceGuard(int device) {
  CheckCuda(cudaGetDevice(&before_), "cudaGetDevice");
  if (device == before_) return;
  CheckCuda(cudaSetDevice(device), "cudaSetDevice");
  goes_back_ = has_device || before_ != 0;
}

CudaDeviceGuard::~CudaDeviceGuard() {
  if (goes_back_) cudaSetDevice(before_);
}

}  // namespace weft
