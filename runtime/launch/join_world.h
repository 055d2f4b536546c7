#ifndef WEFT_RUNTIME_LAUNCH_JOIN_WORLD_H_
#define WEFT_RUNTIME_LAUNCH_JOIN_WORLD_H_

#include <chrono>
#include <memory>
#include <string>

#include "runtime/launch/world.h"

namespace weft {

// A rank's place in a world, and where its ranks meet.
struct WorldPlace {
  int rank = 0;
  int size = 1;
  // "tcp://HOST:PORT": rank 0 listens there. "file:///PATH": rank 0 makes that file, which all ranks see, listens on a port of
  // its own and says in the file where; it removes the file when all have come.
  std::string address = {};
  std::string token = {};  // tcp: what ranks must show, the same for all; a file has one of its own making
  // Which of several worlds that meet at one place, the same number on all ranks: needed where a world is made anew after
  // one that failed, whose ranks may not have ended it all.
  int generation = 0;
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // for all ranks to come
};

// Joins a world by arguments, without a launcher or its environment: as one rank, which is this process. A process may join
// one after another: the end of a world waits for all its ranks, so that the next can meet at the same place.
//
// Cost:    two round trips to rank 0, and the time until all have come.
// Threads: the world belongs to the calling thread.
// Errors:  InvalidArgument for a place that cannot be; for two ranks of the same number or ranks that were told of another
//          size, naming both sides; for a file that is left from an earlier world, naming who has left it.
//          DeadlineExceeded, naming the ranks that have not come, on all that have. Those of World::FromEnv.
// Source:  torch.distributed.init_process_group(init_method=...).
std::unique_ptr<World> JoinWorld(const WorldPlace& place, const WorldOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_JOIN_WORLD_H_
