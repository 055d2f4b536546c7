#include <utility>

#include "runtime/comm/nccl/groups.h"

namespace weft {
namespace {

std::unique_ptr<DeviceGroups> Make(std::shared_ptr<Store> store, int world_rank,
                                   std::shared_ptr<Allocator> allocator) {
  return MakeNcclGroups(MakeNcclApi(), std::move(store), world_rank, std::move(allocator));
}

const RegisterDeviceGroups kRegister(DeviceType::kCuda, {&Make, &NcclDeviceName});

}  // namespace
}  // namespace weft
