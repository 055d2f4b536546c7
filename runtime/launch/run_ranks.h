#ifndef WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_
#define WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_

#include <functional>

#include "runtime/launch/world.h"

namespace weft {

// Runs `body` on `num_ranks` ranks that are threads of this process, over the `local` communicator, or NCCL
// where each has a GPU of its own (WorldOptions::backend), and returns when all have ended. Rank 0 runs on a
// thread of its own too, so that ranks are alike.
//
// Errors: if ranks throw, the others are released from whatever collective they wait in, and the first error
//         (in time) is rethrown here, an Error's message prefixed by "rank R: ". InvalidArgument if num_ranks
//         < 1, or for a backend whose ranks are processes.
void RunRanks(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_
