// Elements on the host on their way to a device, beside what it computes.

#ifndef WEFT_RUNTIME_TENSOR_DEVICE_COPY_H_
#define WEFT_RUNTIME_TENSOR_DEVICE_COPY_H_

#include <memory>
#include <vector>

#include "runtime/tensor/tensor.h"
#include "runtime/tensor/tensor_functions.h"

namespace weft {

// Brings tensors to a device on a stream of its own. CopyTensor copies in the order of the rank's work, and waits until the
// host's memory may change; this does neither. Keeps the host's tensors until they have been read.
//
// Threads: the rank's.
class DeviceCopy {
 public:
  DeviceCopy() = default;
  ~DeviceCopy();
  DeviceCopy(DeviceCopy&&) = default;
  DeviceCopy& operator=(DeviceCopy&&) = default;

  // Begins to copy `from`, row-major on the host (MakeHostAllocator), to a new row-major tensor of `allocator`, which it
  // returns: to be read after Join. Of memory of the CPU it returns `from`. Does not wait.
  // Errors: ResourceExhausted.
  Tensor Begin(const Tensor& from, const std::shared_ptr<Allocator>& allocator);

  // What the device is given from now on may read what was begun. Does not wait.
  void Join();

  // Waits until what was begun is there, and lets go of the host's tensors.
  // Errors: those of the device's work.
  void Wait();

 private:
  std::unique_ptr<HostToDevice> device_;  // null before the first copy
  std::vector<Tensor> sources_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_DEVICE_COPY_H_
