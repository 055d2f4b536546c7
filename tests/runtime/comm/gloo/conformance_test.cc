// The conformance cases against the `gloo` backend: ranks are processes that share memory, that talk TCP, and
// both: two to a host.

#include "tests/runtime/comm/conformance.h"

#include "tests/runtime/comm/gloo/gloo_ranks.h"

namespace weft {
namespace {

CommBackend Backend(const std::string& name, const std::function<GlooOptions(int)>& options,
                    const std::vector<int>& sweep_ranks, double repeats) {
  return {name,
          [=](int num_ranks, const std::function<void(World&)>& body) {
            RunGlooRanks(num_ranks, [&](GlooWorld& world) { body(world); }, {.hub = options});
          },
          sweep_ranks, repeats};
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, CommConformance,
                         testing::Values(Backend(
                             "memory", [](int) { return GlooOptions{.path = GlooPath::kSharedMemory}; },
                             {1, 2, 3, 5, 7, 8}, 1)));
INSTANTIATE_TEST_SUITE_P(Tcp, CommConformance, testing::Values(Backend("tcp", OverTcp, {3}, 0.1)));
INSTANTIATE_TEST_SUITE_P(TwoToAHost, CommConformance,
                         testing::Values(Backend("two to a host", TwoToAHost, {4, 6}, 0.1)));

}  // namespace
}  // namespace weft
