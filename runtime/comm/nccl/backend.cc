#include <stdlib.h>

#include <utility>

#include "runtime/comm/nccl/groups.h"

namespace weft {
namespace {

std::unique_ptr<DeviceGroups> Make(std::shared_ptr<Store> store, int world_rank,
                                   std::shared_ptr<Allocator> allocator) {
  return MakeNcclGroups(MakeNcclApi(), std::move(store), world_rank, std::move(allocator),
                        NcclOptionsFromEnv());
}

// NCCL reads it when it is first called, which is after static initialisation. Since 2.22 it connects members for an algorithm at
// the first call that takes it, and the host waits there for all of them: ranks that come to their lanes' first calls in other
// orders would wait for each other for ever. So they are connected when the group is made, where all members are.
DeviceGroupsBackend Connected(const DeviceGroupsBackend& backend) {
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  return backend;
}

const RegisterDeviceGroups kRegister(DeviceType::kCuda, Connected({&Make, &NcclDeviceName}));

}  // namespace
}  // namespace weft
