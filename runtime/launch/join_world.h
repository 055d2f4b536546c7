#ifndef WEFT_RUNTIME_LAUNCH_JOIN_WORLD_H_
#define WEFT_RUNTIME_LAUNCH_JOIN_WORLD_H_

#include <memory>

#include "runtime/launch/world.h"
#include "runtime/launch/world_place.h"

namespace weft {

// Joins a world by arguments, without a launcher or its environment: as one rank, which is this process. A process may join
// one after another: the end of a world waits for all its ranks, so that the next can meet at the same place.
// Raises the limit of the process's open files (RaiseOpenFileLimit).
//
// Cost:    a few round trips to rank 0, and the time until all have come.
// Threads: the world belongs to the calling thread.
// Errors:  InvalidArgument for a place that cannot be; for two ranks of the same number or ranks that were told of another
//          size, naming both sides; for a file that is left from an earlier world, naming who has left it.
//          DeadlineExceeded, naming the ranks that have not come, on all that have. Those of World::FromEnv.
// Source:  torch.distributed.init_process_group(init_method=...).
std::unique_ptr<World> JoinWorld(const WorldPlace& place, const WorldOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_JOIN_WORLD_H_
