#ifndef WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_
#define WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_

#include <functional>

#include "runtime/launch/world.h"

namespace weft {

// Ranks that are threads of one process: many more than any machine has cores, and fewer than the threads and the memory that
// it gives out. A mistyped size of a mesh ends by this, not with the machine's memory.
constexpr int kMaxThreadRanks = 1024;

// Runs `body` on `num_ranks` ranks that are threads of this process, over the `local` communicator, or NCCL
// where each has a GPU of its own (WorldOptions::backend), and returns when all have ended. Rank 0 runs on a
// thread of its own too, so that ranks are alike.
//
// Errors: if ranks throw, the others are released from whatever collective they wait in, and the first error
//         (in time) is rethrown here, an Error's message prefixed by "rank R: ". InvalidArgument if num_ranks
//         < 1 or > kMaxThreadRanks, or for a backend whose ranks are processes.
void RunRanks(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_
