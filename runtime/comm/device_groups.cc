#include "runtime/comm/device_groups.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/device/device_table.h"

namespace weft {
namespace {

DeviceTable<DeviceGroupsBackend>& Backends() {
  static DeviceTable<DeviceGroupsBackend> table;
  return table;
}

}  // namespace

RegisterDeviceGroups::RegisterDeviceGroups(DeviceType type, const DeviceGroupsBackend& backend) {
  Backends().Add(type, backend, absl::StrCat("the communicators of ", DeviceTypeName(type), " are"));
}

bool HasDeviceGroups(DeviceType type) { return Backends().Find(type) != nullptr; }

const DeviceGroupsBackend& DeviceGroupsOf(DeviceType type) {
  const DeviceGroupsBackend* const backend = Backends().Find(type);
  if (backend == nullptr) {
    Throw(absl::StatusCode::kFailedPrecondition, type == DeviceType::kCuda ? "backend nccl" : "communicators",
          ": this program was built without it; build it with --config=cuda");
  }
  return *backend;
}

}  // namespace weft
