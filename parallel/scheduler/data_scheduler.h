#ifndef WEFT_PARALLEL_SCHEDULER_DATA_SCHEDULER_H_
#define WEFT_PARALLEL_SCHEDULER_DATA_SCHEDULER_H_

#include <memory>
#include <vector>

#include "dtensor/context/mesh_context.h"
#include "dtensor/nn/model_stages.h"
#include "dtensor/nn/module.h"
#include "parallel/resolved_plan.h"
#include "parallel/scheduler_options.h"

namespace weft {

// Puts a materialized model's gradients into buckets and its sharded parameters into units, as its plan says:
// parameters get their sink and, in a unit, the source of their copies; modules of units tell when forward has
// left them. From then on forward and backward do the rest. On a mesh of one rank there is nothing to do.
//
// `communication`: by which method gradients are summed, of each parameter that is here.
void ScheduleData(Module& model, const IntrusivePtr<MeshContext>& context,
                  const std::vector<ResolvedUnit>& units,
                  const std::vector<ParameterCommunication>& communication, const SchedulerOptions& options);

// The same of the part of a model that a rank of a pipeline has, `context` being of the slice that it is on: units and
// buckets are of one stage each, and when they move is for the schedule to say (ModelStages::data).
//
// `units`:        of parameters that are here; none has parameters of different stages.
// `communication`: as above.
// `stages`:       of each parameter that is here, all the stages that have it, ascending.
// `model_stages`: how the model is cut; its `data` is not looked at.
// Cost: communicators among the ranks that have the same parameters, which all of them make alike.
std::shared_ptr<StageData> ScheduleStageData(Module& model, const IntrusivePtr<MeshContext>& context,
                                             const std::vector<ResolvedUnit>& units,
                                             const std::vector<ParameterCommunication>& communication,
                                             const std::vector<std::vector<int>>& stages,
                                             const ModelStages& model_stages,
                                             const SchedulerOptions& options);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_DATA_SCHEDULER_H_
