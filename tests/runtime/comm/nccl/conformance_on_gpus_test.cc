// The conformance cases over NCCL itself, on a machine with eight GPUs: rank r has GPU r.

#include "runtime/launch/run_ranks.h"
#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

void Run(int num_ranks, const std::function<void(World&)>& body) {
  RunRanks(num_ranks, body,
           {.backend = Backend::kNccl,
            .device = DeviceType::kCuda,
            .threads_per_rank = 1,
            .comm_timeout = std::chrono::minutes(1)});
}

INSTANTIATE_TEST_SUITE_P(
    NcclOnGpus, CommConformance,
    testing::Values(CommBackend{
        .name = "nccl", .run = Run, .sweep_ranks = {2, 3, 8}, .exact_reductions = false}));

}  // namespace
}  // namespace weft
