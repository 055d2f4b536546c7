#ifndef WEFT_RUNTIME_LAUNCH_RUN_WITHIN_MEMORY_H_
#define WEFT_RUNTIME_LAUNCH_RUN_WITHIN_MEMORY_H_

#include <functional>
#include <string>
#include <vector>

#include "runtime/launch/world.h"

namespace weft {

// Ways to run a program that differ in the memory they take, as activations that backward computes again do, and in nothing
// that counts.
struct MemorySavings {
  // As messages name them ("--recompute=full"), the one that saves least first; at least one.
  std::vector<std::string> names;
  bool allow_spares = false;  // RunWorldWithSpares
  // Before ranks that are threads run again, by the caller's thread.
  std::function<void()> before_again = nullptr;
};

// Runs `body` as RunWorld does, with the number of a saving: the first one; when a rank has run out of memory, all ranks run
// again with the next. Ranks that are threads do at once, processes when weft_run has started them again (--max-restarts counts
// that): the job's store keeps which saving a number of ranks has come to. Other launchers' processes always take the first.
//
// Cost:   of processes under weft_run a round of calls of the store.
// Errors: as RunWorld's. Lack of memory is ResourceExhausted with the allocator's numbers, and what would save more.
void RunWithinMemory(int num_ranks, const MemorySavings& savings,
                     const std::function<void(World& world, int saving)>& body,
                     const WorldOptions& options = {});

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_RUN_WITHIN_MEMORY_H_
