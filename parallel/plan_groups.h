#ifndef WEFT_PARALLEL_PLAN_GROUPS_H_
#define WEFT_PARALLEL_PLAN_GROUPS_H_

#include <utility>
#include <vector>

#include "dtensor/context/lane.h"
#include "dtensor/nn/module.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/redistribution/cost_model.h"
#include "parallel/resolved_plan.h"

namespace weft {

// The axes, alone and together, that a training step under a plan communicates over: what the parameters
// that are here are gathered and their gradients reduced over, axes that module borders are pinned along, those that
// the batch is split over and those that any parameter is. Axes of one rank are left out. Ascending within a list;
// lists in an order that follows from plan and mesh alone, so that every rank of a group has the same one.
//
// The second list: the axes that lanes beside the rank's thread communicate over, gradients to their rest (in
// the dtype in which they are reduced, or by a method of communication) and parameters to compute and after an update.
//
// `part`: of a model's parts (On), the one that this rank has, on whose mesh all is; -1 if it has none.
// `dtype`, `compute_dtype`: of the run, for parameters that the plan gives none of their own.
//
// What a model asks for by itself (a Redistribute of its own, a layout that propagation chooses) is not
// foreseen.
struct PlannedGroups {
  std::vector<AxisList> inline_groups;
  std::vector<std::pair<Lane, AxisList>> lane_groups;
};
PlannedGroups PlanGroups(Module& model, const ResolvedPlan& plan, int part, const DeviceMesh& mesh,
                         const CostModel& cost_model, DType dtype, DType compute_dtype);

}  // namespace weft

#endif  // WEFT_PARALLEL_PLAN_GROUPS_H_
