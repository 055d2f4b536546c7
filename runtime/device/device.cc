#include "runtime/device/device.h"

namespace weft {

absl::string_view DeviceTypeName(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return "cuda";
    case DeviceType::kMeta:
      return "meta";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << DeviceTypeName(device.type) << ":" << device.index;
}

}  // namespace weft
