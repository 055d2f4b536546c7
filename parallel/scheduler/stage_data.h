#ifndef WEFT_PARALLEL_SCHEDULER_STAGE_DATA_H_
#define WEFT_PARALLEL_SCHEDULER_STAGE_DATA_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "dtensor/nn/model_stages.h"
#include "parallel/scheduler/gradient_buckets.h"
#include "parallel/scheduler/stage_term.h"
#include "parallel/scheduler/unit_copies.h"

namespace weft {

// What a rank of a pipeline has, by the stages of this rank that have it. Usually one; what several have (a tied head
// where the stages lie there and back) moves when all of them have said so.
struct StageParts {
  std::shared_ptr<UnitCopies> copies = nullptr;  // null: no parameters are gathered
  std::vector<std::vector<int>> units = {};      // the stages of each unit
  std::vector<std::pair<std::vector<int>, std::shared_ptr<GradientBuckets>>> buckets = {};
  // Of parameters that several stages have, by the indices along the pipeline's axis of the ranks that these lie on,
  // ascending. `buckets`, and the sinks of leaves that are in none, leave gradients here.
  std::map<std::vector<int>, std::vector<StageTerm>> terms = {};
};

// Hooks of a parameter that several stages have (Parameter::AddGradientReady) run in FinishGradients, once, on every rank
// that has it: its gradient is the sum over the stages then, beside what there was before the step. One that no microbatch
// has reached on any stage gets none, as on one device.
//
// Cost: a communicator for each entry of `parts.terms` of several ranks; in FinishGradients, over each, an all-reduce of the
//       terms, and before it one of 8 bytes per parameter, in the ledger under purpose `metric`, which the rank waits for.
std::shared_ptr<StageData> MakeStageData(const ModelStages& stages, StageParts parts);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_STAGE_DATA_H_
