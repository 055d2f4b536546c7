#ifndef WEFT_RUNTIME_DEVICE_DEVICE_BACKEND_H_
#define WEFT_RUNTIME_DEVICE_DEVICE_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/device/allocator.h"
#include "runtime/device/device.h"

namespace weft {

// How one rank uses its device.
struct DeviceOptions {
  // Most live bytes; 0: as many as the device has. Going over it is ResourceExhausted, which names it.
  int64_t cap_bytes = 0;
  // Whether products of f32 on a GPU may round their operands to 11 significant bits (tf32), which tensor
  // cores take. The CPU never rounds them.
  bool allow_tf32 = false;
  // For finding what reads memory after it was given back: blocks that come back to the pool are filled with bytes
  // 0xff, a NaN in every floating type; on a GPU in the order of the rank's stream. Costs a pass over each.
  bool fill_freed = false;
  // Where a rank on the CPU keeps what is offloaded (MakeHostAllocator): a folder for its file, as MakeFileAllocator
  // takes it. Of no meaning on other devices.
  std::string offload_folder = "";
};

// What a kind of device adds to a program that links it.
struct DeviceBackend {
  // How many of them this process sees.
  // Errors: Unavailable that says why there are none ("no CUDA device: driver not found").
  int (*count)();

  // The device as its maker calls it.
  // Errors: InvalidArgument if there is no device of that index.
  std::string (*name)(int index);

  // An allocator of the device's memory for one rank. Called on the rank's thread, which from now on works
  // with this device.
  std::shared_ptr<Allocator> (*make_allocator)(int index, const DeviceOptions& options);

  // An allocator of the memory beside it: MakeHostAllocator.
  std::shared_ptr<Allocator> (*make_host_allocator)(const DeviceOptions& options);
};

// Registers a kind of device, from its own file, during static initialisation. Registering one twice ends the
// program with a message: it is a defect of the build.
class RegisterDeviceBackend {
 public:
  RegisterDeviceBackend(DeviceType type, const DeviceBackend& backend);
};

// True if this program has been built with that kind of device.
bool HasDeviceBackend(DeviceType type);

// Errors: FailedPrecondition if this program has been built without it; as DeviceBackend::count.
int CountDevices(DeviceType type);

// "NVIDIA H100 80GB HBM3"; "cpu" of the CPU.
// Errors: as CountDevices; InvalidArgument if there is no device of that index.
std::string DeviceName(const Device& device);

// The device that a user names: "cpu", "cuda", or "auto": cuda where this program was built with it and there
// is one, else cpu.
// Errors: InvalidArgument that lists the names; as CountDevices.
DeviceType ParseDevice(absl::string_view name);

// An allocator for one rank, on the rank's own thread.
// Errors: as CountDevices; InvalidArgument if there is no device of that index.
std::shared_ptr<Allocator> MakeAllocator(const Device& device, const DeviceOptions& options = {});

// A rank's second memory, for what its device has no room for; CPU kernels compute on it. Of a GPU it is pinned memory
// of the host; of the CPU memory in a file (MakeFileAllocator); of meta as much again.
// Errors: as CountDevices; those of MakeFileAllocator.
std::shared_ptr<Allocator> MakeHostAllocator(DeviceType type, const DeviceOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_DEVICE_BACKEND_H_
