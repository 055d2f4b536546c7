#include "runtime/tensor/host_copy.h"

namespace weft {

void HostCopy::Begin(const Tensor& from) {
  if (from.device().type == DeviceType::kCpu) {
    host_ = from;
    return;
  }
  if (device_ == nullptr) device_ = TensorFunctionsOf(from.device().type).make_device_to_host();
  host_ = device_->Begin(from);
}

const Tensor& HostCopy::Wait() {
  if (device_ != nullptr) device_->Wait();
  return host_;
}

}  // namespace weft
