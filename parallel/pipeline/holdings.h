// What each rank of a pipeline holds at most: activations, and versions of its weights.

#ifndef WEFT_PARALLEL_PIPELINE_HOLDINGS_H_
#define WEFT_PARALLEL_PIPELINE_HOLDINGS_H_

#include <vector>

#include "parallel/pipeline/schedule.h"

namespace weft {

// By rank. It follows from the order of the lists alone, whatever the times.
struct ScheduleHoldings {
  std::vector<int> peak_w;  // the most activations, in chunks, where each is held from F to the end of W or B
  std::vector<int> peak_i;  // the same to the end of I or B
  std::vector<int> versions;  // the most versions of the weights of one stage: 1 under WeightVersions::kOne

  bool operator==(const ScheduleHoldings&) const = default;
};

// Each part of an overlapped pair counts until the whole pair ends.
// The schedule has no defect by `ActionOrderDefect`.
ScheduleHoldings HoldingsOf(const PipelineSchedule& schedule);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_HOLDINGS_H_
