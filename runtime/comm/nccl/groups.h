#ifndef WEFT_RUNTIME_COMM_NCCL_GROUPS_H_
#define WEFT_RUNTIME_COMM_NCCL_GROUPS_H_

#include <memory>
#include <string>

#include "runtime/comm/device_groups.h"
#include "runtime/comm/nccl/hub.h"

namespace weft {

// What a rank's environment says of NcclOptions: memory is registered with NCCL where WEFT_NCCL_REGISTER is 1, and not where it is
// 0 or not set.
// Errors: InvalidArgument for another value.
NcclOptions NcclOptionsFromEnv();

// The nccl communicators of one rank, whose allocator is a GPU's.
std::unique_ptr<DeviceGroups> MakeNcclGroups(std::shared_ptr<NcclApi> api, std::shared_ptr<Store> store,
                                             int world_rank, std::shared_ptr<Allocator> allocator,
                                             NcclOptions options = {});

// The GPU's bus address, and this machine as NCCL tells machines apart: NCCL_HOSTID, else this boot.
std::string NcclDeviceName(const Allocator& allocator);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_GROUPS_H_
