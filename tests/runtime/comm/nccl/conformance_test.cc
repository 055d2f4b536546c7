// The conformance cases against the `nccl` backend, with a fake library on emulated GPUs: what NCCL is asked
// to do, with which buffers, and in which order of streams.

#include "tests/runtime/comm/conformance.h"

#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

void Run(int num_ranks, const std::function<void(World&)>& body) { RunNcclRanks(num_ranks, body); }

INSTANTIATE_TEST_SUITE_P(
    Nccl, CommConformance,
    testing::Values(CommBackend{
        .name = "nccl", .run = Run, .sweep_ranks = {3}, .repeats = 0.1, .exact_reductions = false}));

}  // namespace
}  // namespace weft
