#ifndef WEFT_PARALLEL_SCHEDULER_DATA_SCHEDULER_H_
#define WEFT_PARALLEL_SCHEDULER_DATA_SCHEDULER_H_

#include <vector>

#include "dtensor/context/mesh_context.h"
#include "dtensor/nn/module.h"
#include "parallel/resolved_plan.h"
#include "parallel/scheduler_options.h"

namespace weft {

// Puts a materialized model's gradients into buckets and its sharded parameters into units, as its plan says:
// parameters get their sink and, in a unit, the source of their copies; modules of units tell when forward has
// left them. From then on forward and backward do the rest. On a mesh of one rank there is nothing to do.
void ScheduleData(Module& model, const IntrusivePtr<MeshContext>& context,
                  const std::vector<ResolvedUnit>& units, const SchedulerOptions& options);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_DATA_SCHEDULER_H_
