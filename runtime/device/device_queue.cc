#include "runtime/device/device_queue.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/device/device_table.h"

namespace weft {
namespace {

DeviceTable<DeviceQueues>& Table() {
  static DeviceTable<DeviceQueues> table;
  return table;
}

}  // namespace

RegisterDeviceQueues::RegisterDeviceQueues(DeviceType type, const DeviceQueues& queues) {
  Table().Add(type, queues, absl::StrCat("queues of device ", DeviceTypeName(type), " are"));
}

bool HasDeviceQueues(const Allocator& allocator) { return Table().Find(allocator.device().type) != nullptr; }

DeviceQueue& DeviceQueueOf(Allocator& allocator, int number) {
  const DeviceType type = allocator.device().type;
  const DeviceQueues* const queues = Table().Find(type);
  if (queues == nullptr) {
    Throw(absl::StatusCode::kFailedPrecondition, "device ", DeviceTypeName(type), " has no queues");
  }
  return queues->queue(allocator, number);
}

void FinishDeviceQueues(Allocator& allocator) noexcept {
  const DeviceQueues* const queues = Table().Find(allocator.device().type);
  if (queues != nullptr) queues->finish(allocator);
}

}  // namespace weft
