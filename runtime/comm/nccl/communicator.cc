#include "runtime/comm/nccl/communicator.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/nccl/gpu_communicator.h"

namespace weft {

std::shared_ptr<Communicator> MakeNcclCommunicator(std::shared_ptr<NcclHub> hub, const std::string& name,
                                                   const std::vector<int>& ranks, Ledger* ledger) {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), hub->world_rank());
  WEFT_CHECK(found != ranks.end() && *found == hub->world_rank(), "rank ", hub->world_rank(),
             " is not a member");
  const int rank = static_cast<int>(found - ranks.begin());
  auto group = std::make_shared<GpuCommunicator>(hub, name, ranks, rank, ledger);
  hub->Add(group);
  if (ledger != nullptr) ledger->AddSource(group);
  if (hub->options().register_memory) static_cast<CudaAllocator&>(*hub->allocator()).AddObserver(group);
  // Work may be in flight when its user lets go of it: the hub keeps it till then.
  Communicator* const face = group.get();
  return std::shared_ptr<Communicator>(face, [group = std::move(group), hub = std::move(hub)](
                                                 Communicator*) mutable { hub->Retire(std::move(group)); });
}

}  // namespace weft
