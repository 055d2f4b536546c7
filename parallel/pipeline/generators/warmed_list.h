// The list that 1F1B and all its kin have: forwards to warm up, then one forward and one backward in turn.

#ifndef WEFT_PARALLEL_PIPELINE_GENERATORS_WARMED_LIST_H_
#define WEFT_PARALLEL_PIPELINE_GENERATORS_WARMED_LIST_H_

#include <optional>
#include <vector>

#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/schedule.h"

namespace weft {

// How one rank's list goes.
struct WarmedListOptions {
  int rank = 0;
  int warm_up = 0;  // forwards before the first pair; at most all are taken
  int group = 1;    // microbatches that a chunk takes before the next chunk's turn
  // With a number: backward is I, and a W follows each I once so many I are done; the others come last.
  // Without: B.
  std::optional<int> weights_held = std::nullopt;
  int microbatches_per_update = 0;  // an OPT after as many backwards; 0: none
};

// Stages lie as LoopPlacement has it. The k-th forward is of chunk (k / group) mod chunks, the k-th backward
// of the same counted from the last chunk.
std::vector<ScheduleItem> WarmedList(const ScheduleSize& size, const WarmedListOptions& options);

// Microbatches per turn of a chunk, as PyTorch has it: all of them, divided by the rounds of about one per
// rank.
int InterleavedGroup(const ScheduleSize& size);

// The rule that InterleavedGroup divides evenly, for errors and as a predicate.
inline constexpr char kInterleavedRule[] =
    "microbatches in a multiple of their rounds, max(1, microbatches / ranks rounded down)";
bool InterleavedAccepts(const ScheduleSize& size);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_GENERATORS_WARMED_LIST_H_
