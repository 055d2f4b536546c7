#include "runtime/tensor/begin_copy.h"

#include "runtime/base/error.h"
#include "runtime/tensor/tensor_functions.h"

namespace weft {

std::shared_ptr<QueuedBatch> BeginCopy(const Tensor& from, const Tensor& to, const CopyAfter& after) {
  const auto is_host = [](const Tensor& tensor) { return tensor.device().type == DeviceType::kCpu; };
  const bool to_host = is_host(to);
  const Tensor& on_device = to_host ? from : to;
  const Tensor& on_host = to_host ? to : from;
  Allocator& device = *on_device.buffer()->allocator();
  WEFT_REQUIRE(
      is_host(on_host) && HasDeviceQueues(device),
      "BeginCopy: expected one tensor on the host and one on a device that copies beside computing, got ",
      from.TypeString(), " on ", DeviceTypeName(from.device().type), " and ", to.TypeString(), " on ",
      DeviceTypeName(to.device().type));
  WEFT_REQUIRE(
      from.dtype() == to.dtype() && from.shape() == to.shape() && from.IsContiguous() && to.IsContiguous(),
      "BeginCopy: expected row-major tensors of one type, got ", from.TypeString(), " and ", to.TypeString());
  QueueScope scope(DeviceQueueOf(device, to_host ? kToHostQueue : kFromHostQueue), after.rank);
  if (after.join != nullptr) after.join();
  if (to.num_bytes() > 0) TensorFunctionsOf(device.device().type).issue_copy(from, to);
  return scope.End({.on_device = std::make_shared<const Tensor>(on_device),
                    .on_host = std::make_shared<const Tensor>(on_host),
                    .device_bytes = to_host ? on_device.buffer()->num_bytes() : 0});
}

}  // namespace weft
