// A device's elements on their way to the host, which need not wait for more than them.

#ifndef WEFT_RUNTIME_TENSOR_HOST_COPY_H_
#define WEFT_RUNTIME_TENSOR_HOST_COPY_H_

#include <memory>

#include "runtime/tensor/tensor.h"
#include "runtime/tensor/tensor_functions.h"

namespace weft {

// Brings small tensors to the host, one after the other. CopyTensor to the CPU waits for all that the device has
// been given; this waits for what it was given before Begin, so that the host can give it more in between.
// Keeps memory for the last tensor.
class HostCopy {
 public:
  // Begins to copy behind what the device has been given so far; does not wait. Of a tensor on the CPU nothing is
  // copied.
  void Begin(const Tensor& from);

  // The elements of the tensor that Begin was last called with, on the CPU, until the next Begin.
  // Cost:   waits until they are there.
  // Errors: those of the device's work.
  const Tensor& Wait();

 private:
  Tensor host_;
  std::unique_ptr<DeviceToHost> device_;  // null on the CPU
};

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_HOST_COPY_H_
