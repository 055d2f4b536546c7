#ifndef WEFT_RUNTIME_DEVICE_DEVICE_H_
#define WEFT_RUNTIME_DEVICE_DEVICE_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// Where a tensor's bytes lie. A meta tensor has a shape and no bytes.
enum class DeviceType : uint8_t { kCpu, kCuda, kMeta };

inline constexpr DeviceType kAllDeviceTypes[] = {DeviceType::kCpu, DeviceType::kCuda, DeviceType::kMeta};

// "cpu", "cuda", "meta".
absl::string_view DeviceTypeName(DeviceType type);

// One device of a kind; the index counts those that this process sees.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;

  bool operator==(const Device&) const = default;
};

// "cpu:0".
std::ostream& operator<<(std::ostream& out, const Device& device);

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_DEVICE_H_
