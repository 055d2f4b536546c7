#ifndef WEFT_RUNTIME_TENSOR_TENSOR_FUNCTIONS_H_
#define WEFT_RUNTIME_TENSOR_TENSOR_FUNCTIONS_H_

#include <memory>

#include "runtime/base/reduce_op.h"
#include "runtime/device/device.h"

namespace weft {

class Tensor;

// What runtime/tensor/host_copy.h does on a device other than the CPU.
class DeviceToHost {
 public:
  virtual ~DeviceToHost() = default;
  // Where the elements will be on the CPU, behind what the device has been given so far. Does not wait.
  virtual Tensor Begin(const Tensor& from) = 0;
  // Until they are there.
  virtual void Wait() = 0;
};

// What runtime/tensor/device_copy.h does on a device other than the CPU.
class HostToDevice {
 public:
  virtual ~HostToDevice() = default;
  // Begins to copy, beside what the device does, behind what it has been given so far. Does not wait; `from`, row-major in
  // memory that MakeHostAllocator gives, and `to`, row-major, are to stay until Wait. Several may be begun.
  virtual void Begin(const Tensor& from, const Tensor& to) = 0;
  // What the device is given from now on waits for all that was begun. Does not wait itself.
  virtual void Join() = 0;
  // Until all that was begun is there.
  virtual void Wait() = 0;
};

// What runtime/tensor/copy.h does on a device other than the CPU. Tensors are checked and not empty.
struct TensorFunctions {
  // Both on the same device, any strides and dtypes. Does not wait.
  void (*copy)(const Tensor& from, const Tensor& to);

  // Row-major elements in the tensor's dtype, any strides of the tensor. The first waits until they are
  // there; the second until they may change.
  void (*to_host)(const Tensor& from, void* to);
  void (*from_host)(const void* from, const Tensor& to);

  // Between the device and the host's memory that MakeHostAllocator gives, either way; row-major on both sides, of one
  // dtype. In the order of what the device is given now (QueueScope); does not wait.
  void (*issue_copy)(const Tensor& from, const Tensor& to);

  void (*fill)(const Tensor& tensor, double value);
  void (*accumulate)(const Tensor& from, const Tensor& to, ReduceOp op);

  std::unique_ptr<DeviceToHost> (*make_device_to_host)();
  std::unique_ptr<HostToDevice> (*make_host_to_device)();
};

// Registers a device's functions, from their own file, during static initialisation. Registering a device
// twice ends the program with a message: it is a defect of the build.
class RegisterTensorFunctions {
 public:
  RegisterTensorFunctions(DeviceType type, const TensorFunctions& functions);
};

// Errors: FailedPrecondition if this program has been built without the device.
const TensorFunctions& TensorFunctionsOf(DeviceType type);

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_TENSOR_FUNCTIONS_H_
