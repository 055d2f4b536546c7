// The order in which a rank runs the actions of its list, overlapped pairs included.

#ifndef WEFT_PARALLEL_PIPELINE_RUN_ORDER_H_
#define WEFT_PARALLEL_PIPELINE_RUN_ORDER_H_

#include <vector>

#include "absl/types/span.h"
#include "parallel/pipeline/schedule.h"

namespace weft {

// Every action of a rank's list, in the order in which PipelineExecutor runs them: item after item. The parts of a pair run
// one after the other; a send right behind the pair of what its first part has made goes before the second part.
//
//   0F0, (0F1;1B0)OVERLAP_F_B, 0SEND_F1, 1SEND_B0  ->  0F0, 0F1, 0SEND_F1, 1B0, 1SEND_B0
std::vector<PipelineAction> RunOrder(absl::Span<const ScheduleItem> list);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_RUN_ORDER_H_
