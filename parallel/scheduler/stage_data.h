#ifndef WEFT_PARALLEL_SCHEDULER_STAGE_DATA_H_
#define WEFT_PARALLEL_SCHEDULER_STAGE_DATA_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "dtensor/nn/model_stages.h"
#include "dtensor/nn/parameter.h"
#include "parallel/scheduler/gradient_buckets.h"
#include "parallel/scheduler/unit_copies.h"

namespace weft {

// What a rank of a pipeline has, by the stages of this rank that have it. Usually one; what several have (a tied head
// where the stages lie there and back) moves when all of them have said so.
struct StageParts {
  std::shared_ptr<UnitCopies> copies = nullptr;  // null: no parameters are gathered
  std::vector<std::vector<int>> units = {};      // the stages of each unit
  std::vector<std::pair<std::vector<int>, std::shared_ptr<GradientBuckets>>> buckets = {};
  // Parameters that other ranks of the pipeline have, too, by these ranks' indices along its axis, ascending.
  std::map<std::vector<int>, std::vector<Parameter*>> shared = {};
};

// Cost: a communicator for each entry of `parts.shared`.
std::shared_ptr<StageData> MakeStageData(const ModelStages& stages, StageParts parts);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_STAGE_DATA_H_
