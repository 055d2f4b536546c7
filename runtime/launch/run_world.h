#ifndef WEFT_RUNTIME_LAUNCH_RUN_WORLD_H_
#define WEFT_RUNTIME_LAUNCH_RUN_WORLD_H_

#include <functional>
#include <optional>

#include "runtime/launch/backend.h"
#include "runtime/launch/world.h"

namespace weft {

// True if this process is one rank of a job, false if its ranks are its threads.
// Errors: InvalidArgument if the backend and how this process was started do not go together.
bool RanksAreProcesses(Backend backend);

// How many ranks the launcher has started that this process is one of; nothing, if ranks are threads.
// Errors: as RanksAreProcesses.
std::optional<int> NumLaunchedRanks(Backend backend);

// Runs `body` on the `num_ranks` ranks of a job: as threads of this process, or on this process's rank of the
// job that a launcher has started. So a program written once runs either way. A program may call it again, on every rank: under a
// launcher that keeps the job's store (weft_run), World::store() has then what the world before has left there.
//
// Errors: InvalidArgument if the launcher's world has another size than `num_ranks`, or as RanksAreProcesses;
//         those of World::FromEnv. What `body` throws: from threads as RunRanks; from a process as it is, and
//         the other processes' groups end with it.
void RunWorld(int num_ranks, const std::function<void(World&)>& body, const WorldOptions& options = {});

// The same where a launcher may have started more ranks than are needed: the last are spares, which wait until rank 0 is
// done or a rank fails, without running `body`. Rank 0 says on stderr which they are. World::size() counts them.
void RunWorldWithSpares(int num_ranks, const std::function<void(World&)>& body,
                        const WorldOptions& options = {});

// Says that the ranks have saved all that they need to go on from here: weft_run counts failures (--max-restarts) anew from
// then on; other ways of starting ranks take no notice. One rank calls it, when all have saved.
// Errors: as the store's.
void NoteSave(World& world);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_RUN_WORLD_H_
