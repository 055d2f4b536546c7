#include "runtime/device/device_backend.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Written during static initialisation only. In a function, so that it exists before the first registrar.
std::optional<DeviceBackend>& BackendOf(DeviceType type) {
  static std::array<std::optional<DeviceBackend>, std::size(kAllDeviceTypes)> table;
  return table[static_cast<size_t>(type)];
}

const DeviceBackend& RequireBackend(DeviceType type) {
  const std::optional<DeviceBackend>& backend = BackendOf(type);
  if (!backend.has_value()) {
    Throw(absl::StatusCode::kFailedPrecondition, "device ", DeviceTypeName(type),
          ": this program was built without it",
          type == DeviceType::kCuda ? "; build it with --config=cuda" : "");
  }
  return *backend;
}

const DeviceBackend& RequireDevice(const Device& device) {
  const DeviceBackend& backend = RequireBackend(device.type);
  const int count = backend.count();
  WEFT_REQUIRE(device.index >= 0 && device.index < count, "device ", DeviceTypeName(device.type), ":",
               device.index, ": this process sees ", count);
  return backend;
}

int CountOne() { return 1; }

std::string NameCpu(int) { return "cpu"; }
std::string NameMeta(int) { return "meta"; }

std::shared_ptr<Allocator> MakeCpu(int, const DeviceOptions& options) {
  return MakeCpuAllocator(options.cap_bytes);
}

std::shared_ptr<Allocator> MakeMeta(int, const DeviceOptions&) { return MakeMetaAllocator(); }

const RegisterDeviceBackend kRegisterCpu(DeviceType::kCpu, {&CountOne, &NameCpu, &MakeCpu});
const RegisterDeviceBackend kRegisterMeta(DeviceType::kMeta, {&CountOne, &NameMeta, &MakeMeta});

}  // namespace

RegisterDeviceBackend::RegisterDeviceBackend(DeviceType type, const DeviceBackend& backend) {
  if (BackendOf(type).has_value()) {
    // Nothing can catch an exception before main.
    std::fprintf(stderr, "weft: device %s is linked into this program twice\n",
                 std::string(DeviceTypeName(type)).c_str());
    std::abort();
  }
  BackendOf(type) = backend;
}

bool HasDeviceBackend(DeviceType type) { return BackendOf(type).has_value(); }

int CountDevices(DeviceType type) { return RequireBackend(type).count(); }

std::string DeviceName(const Device& device) { return RequireDevice(device).name(device.index); }

DeviceType ParseDevice(absl::string_view name) {
  if (name == "auto") {
    if (!HasDeviceBackend(DeviceType::kCuda)) return DeviceType::kCpu;
    try {
      return CountDevices(DeviceType::kCuda) > 0 ? DeviceType::kCuda : DeviceType::kCpu;
    } catch (const Error&) {
      return DeviceType::kCpu;
    }
  }
  if (name == "cpu") return DeviceType::kCpu;
  WEFT_REQUIRE(name == "cuda", "device ", name, ": expected auto, cpu or cuda");
  CountDevices(DeviceType::kCuda);
  return DeviceType::kCuda;
}

std::shared_ptr<Allocator> MakeAllocator(const Device& device, const DeviceOptions& options) {
  const DeviceBackend& backend = RequireDevice(device);
  WEFT_REQUIRE(options.cap_bytes >= 0, "device ", DeviceTypeName(device.type), ": a cap of ",
               options.cap_bytes, " bytes; 0 is none");
  return backend.make_allocator(device.index, options);
}

}  // namespace weft
