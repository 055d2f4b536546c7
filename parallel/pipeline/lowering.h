// From lists that compute alone to lists that also say what moves, and when.

#ifndef WEFT_PARALLEL_PIPELINE_LOWERING_H_
#define WEFT_PARALLEL_PIPELINE_LOWERING_H_

#include <vector>

#include "parallel/pipeline/schedule.h"

namespace weft {

struct LoweringOptions {
  // Stages of a rank whose parameters may be whole at a time: the next so many that compute are gathered
  // ahead (UNSHARD), the others freed (RESHARD). 0: parameters are whole all the time.
  int whole_stages = 3;
  // Whether a stage is whole for its W, too, as PyTorch has it. A W reads x and dY alone: without, parameters are freed behind
  // the stage's last F, I or B.
  bool whole_for_weights = true;
  // Whether gradients are reduced over replicas: REDUCE_GRAD behind each stage's last gradient of an update.
  bool reduce_gradients = true;

  bool operator==(const LoweringOptions&) const = default;
};

// Adds sends and receives, and what the options say: UNSHARD and RESHARD where the lists have none, REDUCE_GRAD where
// they have none. Lists of one rank need no transfers: lowered once more, they are as they were. The order is PyTorch's:
// a send stands right behind the action that makes what it sends, and in the same moment its receive is appended to the
// other rank's list. Since both ends of each transfer are written at once, there is one order of all transfers that
// every list follows, and ranks that wait in sends and receives until the other end comes (rendezvous) cannot wait in a
// circle.
//
// Cost:   time in proportion to actions times whole_stages.
// Errors: InvalidArgument for a schedule that has sends and receives already or that the checker rejects (with its
//         words), for whole_stages below 0, or below what one overlapped pair computes with.
PipelineSchedule LowerSchedule(const PipelineSchedule& schedule, const LoweringOptions& options = {});

// Forward alone, as lowered lists: each rank takes its stages in order, and all microbatches through each. For
// evaluation; no whole schedule, so the checker would reject it.
// Errors: InvalidArgument for whole_stages below 0.
PipelineSchedule LowerForward(const std::vector<int>& stage_rank, int num_microbatches,
                              const LoweringOptions& options = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_LOWERING_H_
