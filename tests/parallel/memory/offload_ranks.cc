#include "tests/parallel/memory/offload_ranks.h"

#include <chrono>
#include <memory>
#include <string>

#include "runtime/device/cuda/allocator.h"
#include "runtime/device/cuda/check.h"
#include "runtime/device/device_queue.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {

void RunFilling(int num_ranks, const std::function<void(World&)>& body) {
  RunNcclRanks(num_ranks, body, std::make_shared<FakeNccl>(), std::chrono::minutes(2),
               {.tell = [](const std::string&) {}}, {.fill_freed = true});
}

void Block(World& world, int queue, const std::atomic<bool>& may_run) {
  QueueScope scope(DeviceQueueOf(*world.allocator(), queue), /*follows_rank=*/true);
  const CudaStreamRef stream = static_cast<CudaAllocator&>(*world.allocator()).stream();
  CheckCuda(cuda_emulator::IssueWhenReady(stream.handle(), [&may_run] { return may_run.load(); }),
            "IssueWhenReady");
  scope.End({});
}

}  // namespace weft
