// The conformance cases against the `local` backend. Another backend adds a program of its own like this one.

#include "tests/runtime/comm/conformance.h"

#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

void RunLocal(int num_ranks, const std::function<void(World&)>& body) {
  RunRanks(num_ranks, body, {.threads_per_rank = 1, .comm_timeout = std::chrono::minutes(2)});
}

INSTANTIATE_TEST_SUITE_P(Local, CommConformance, testing::Values(CommBackend{"local", RunLocal}));

}  // namespace
}  // namespace weft
