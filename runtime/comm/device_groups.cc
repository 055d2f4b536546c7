#include "runtime/comm/device_groups.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "runtime/base/error.h"

namespace weft {
namespace {

// Written during static initialisation only. In a function, so that it exists before the first registrar.
std::optional<DeviceGroupsBackend>& BackendOf(DeviceType type) {
  static std::array<std::optional<DeviceGroupsBackend>, std::size(kAllDeviceTypes)> table;
  return table[static_cast<size_t>(type)];
}

}  // namespace

RegisterDeviceGroups::RegisterDeviceGroups(DeviceType type, const DeviceGroupsBackend& backend) {
  if (BackendOf(type).has_value()) {
    // Nothing can catch an exception before main.
    std::fprintf(stderr, "weft: the communicators of %s are linked into this program twice\n",
                 std::string(DeviceTypeName(type)).c_str());
    std::abort();
  }
  BackendOf(type) = backend;
}

bool HasDeviceGroups(DeviceType type) { return BackendOf(type).has_value(); }

const DeviceGroupsBackend& DeviceGroupsOf(DeviceType type) {
  const std::optional<DeviceGroupsBackend>& backend = BackendOf(type);
  if (!backend.has_value()) {
    Throw(absl::StatusCode::kFailedPrecondition, type == DeviceType::kCuda ? "backend nccl" : "communicators",
          ": this program was built without it; build it with --config=cuda");
  }
  return *backend;
}

}  // namespace weft
