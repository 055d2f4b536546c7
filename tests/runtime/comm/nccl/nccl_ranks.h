#ifndef WEFT_TESTS_RUNTIME_COMM_NCCL_NCCL_RANKS_H_
#define WEFT_TESTS_RUNTIME_COMM_NCCL_NCCL_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl/hub.h"
#include "runtime/launch/hangs/watchdog_options.h"
#include "runtime/launch/world.h"
#include "runtime/tensor/tensor.h"
#include "tests/runtime/comm/nccl/fake_api.h"

namespace weft {

// What is late is so soon.
NcclOptions FastNcclOptions();

// Runs `body` on ranks that are threads with an emulated GPU each, over the nccl backend and a fake library.
// The fake may have been told to fail; the watchdog tells nobody unless its options say whom. One call at a
// time.
// `wrap_store`: what a rank's groups get in place of the store where they meet.
// Errors: as RunRanks.
void RunNcclRanks(
    int num_ranks, const std::function<void(World&)>& body,
    std::shared_ptr<FakeNccl> fake = std::make_shared<FakeNccl>(),
    std::chrono::milliseconds comm_timeout = std::chrono::minutes(2),
    WatchdogOptions watchdog = {.tell = [](const std::string&) {}}, const DeviceOptions& device_options = {},
    std::function<std::shared_ptr<Store>(std::shared_ptr<Store> store, int rank)> wrap_store = nullptr,
    const NcclOptions& options = FastNcclOptions());

// Issues an all-reduce of `tensor` that is under way until NCCL lets go of it: in a group of world ranks 0 and 1, of which rank 1's
// stream comes to it only when `fake` has aborted a communicator. Returns as a blocking call does.
void AllReduceUntilAborted(World& world, FakeNccl& fake, Communicator& group, const Tensor& tensor);

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_NCCL_NCCL_RANKS_H_
