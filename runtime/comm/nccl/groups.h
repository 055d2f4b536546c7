#ifndef WEFT_RUNTIME_COMM_NCCL_GROUPS_H_
#define WEFT_RUNTIME_COMM_NCCL_GROUPS_H_

#include <memory>
#include <string>

#include "runtime/comm/device_groups.h"
#include "runtime/comm/nccl/hub.h"

namespace weft {

// The nccl communicators of one rank, whose allocator is a GPU's.
std::unique_ptr<DeviceGroups> MakeNcclGroups(std::shared_ptr<NcclApi> api, std::shared_ptr<Store> store,
                                             int world_rank, std::shared_ptr<Allocator> allocator,
                                             NcclOptions options = {});

// The GPU's bus address, and this machine as NCCL tells machines apart: NCCL_HOSTID, else this boot.
std::string NcclDeviceName(const Allocator& allocator);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_GROUPS_H_
