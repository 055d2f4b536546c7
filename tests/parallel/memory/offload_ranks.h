// Ranks with an emulated GPU each, for tests of what is offloaded beside it.

#ifndef WEFT_TESTS_PARALLEL_MEMORY_OFFLOAD_RANKS_H_
#define WEFT_TESTS_PARALLEL_MEMORY_OFFLOAD_RANKS_H_

#include <atomic>
#include <functional>

#include "runtime/launch/world.h"

namespace weft {

// Runs `body` on ranks whose memory turns to NaN when it is given back.
void RunFilling(int num_ranks, const std::function<void(World&)>& body);

// A queue of the rank stands still until `may_run`.
void Block(World& world, int queue, const std::atomic<bool>& may_run);

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_MEMORY_OFFLOAD_RANKS_H_
