#ifndef WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_
#define WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_

#include <chrono>
#include <functional>

#include "runtime/launch/watchdog.h"
#include "runtime/launch/world.h"
#include "runtime/trace/span.h"

namespace weft {

struct RunRanksOptions {
  int threads_per_rank = 0;  // 0: the machine's cores divided among the ranks, at least 1
  std::chrono::milliseconds comm_timeout = std::chrono::minutes(10);
  Tracer* tracer = nullptr;       // shared by the ranks; null: nothing is traced
  WatchdogOptions watchdog = {};  // explains hangs
};

// Runs `body` on `num_ranks` ranks that are threads of this process, over the `local` communicator, and
// returns when all have ended. Rank 0 runs on a thread of its own too, so that ranks are alike.
//
// Errors: if ranks throw, the others are released from whatever collective they wait in, and the first error
// (in time) is rethrown here, an Error's message prefixed by "rank R: ". InvalidArgument if num_ranks < 1.
void RunRanks(int num_ranks, const std::function<void(World&)>& body, const RunRanksOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_RUN_RANKS_H_
