#include "runtime/device/device_backend.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"
#include "runtime/device/device_table.h"

namespace weft {
namespace {

DeviceTable<DeviceBackend>& Backends() {
  static DeviceTable<DeviceBackend> table;
  return table;
}

const DeviceBackend& RequireBackend(DeviceType type) {
  const DeviceBackend* const backend = Backends().Find(type);
  if (backend == nullptr) {
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
  return MakeCpuAllocator(options.cap_bytes, options.fill_freed);
}

std::shared_ptr<Allocator> MakeMeta(int, const DeviceOptions&) { return MakeMetaAllocator(); }

std::shared_ptr<Allocator> MakeCpuFile(const DeviceOptions& options) {
  return MakeFileAllocator(options.offload_folder, /*cap_bytes=*/0, options.fill_freed);
}
std::shared_ptr<Allocator> MakeMetaHost(const DeviceOptions&) { return MakeMetaAllocator(); }

const RegisterDeviceBackend kRegisterCpu(DeviceType::kCpu, {&CountOne, &NameCpu, &MakeCpu, &MakeCpuFile});
const RegisterDeviceBackend kRegisterMeta(DeviceType::kMeta,
                                          {&CountOne, &NameMeta, &MakeMeta, &MakeMetaHost});

}  // namespace

RegisterDeviceBackend::RegisterDeviceBackend(DeviceType type, const DeviceBackend& backend) {
  Backends().Add(type, backend, absl::StrCat("device ", DeviceTypeName(type), " is"));
}

bool HasDeviceBackend(DeviceType type) { return Backends().Find(type) != nullptr; }

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

std::shared_ptr<Allocator> MakeHostAllocator(DeviceType type, const DeviceOptions& options) {
  return RequireBackend(type).make_host_allocator(options);
}

}  // namespace weft
