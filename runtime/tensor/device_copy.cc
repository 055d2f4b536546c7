#include "runtime/tensor/device_copy.h"

namespace weft {

// The device's own part waits, before the tensors go.
DeviceCopy::~DeviceCopy() { device_.reset(); }

Tensor DeviceCopy::Begin(const Tensor& from, const std::shared_ptr<Allocator>& allocator) {
  const DeviceType type = allocator->device().type;
  if (type == DeviceType::kCpu) return from;
  const Tensor to = Tensor::Empty(allocator, from.dtype(), from.shape());
  if (type == DeviceType::kMeta || from.num_elements() == 0) return to;
  if (device_ == nullptr) device_ = TensorFunctionsOf(type).make_host_to_device();
  sources_.push_back(from);
  device_->Begin(from, to);
  return to;
}

void DeviceCopy::Join() {
  if (device_ != nullptr) device_->Join();
}

void DeviceCopy::Wait() {
  if (device_ != nullptr) device_->Wait();
  sources_.clear();
}

}  // namespace weft
