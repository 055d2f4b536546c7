// Plans of redistributions: the cheapest steps from one layout to another.

#ifndef WEFT_MESH_REDISTRIBUTION_PLANNER_H_
#define WEFT_MESH_REDISTRIBUTION_PLANNER_H_

#include <cstdint>
#include <optional>

#include "mesh/redistribution/cost_model.h"
#include "mesh/redistribution/redistribution.h"
#include "mesh/redistribution/search/search.h"
#include "runtime/tensor/shape.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

struct PlanOptions {
  PlanObjective objective = PlanObjective::kTime;
  std::optional<int64_t> memory_cap = {};  // bytes that a rank may hold while the plan runs, see PeakBytes
};

// Returns the steps of least predicted time that turn `from` into `to` without changing the value, among
// plans in which the worst rank receives no more bytes than in PlanGreedy's and holds no more than the cap;
// none if the layouts are equal. With kBytes: those in which it receives the fewest.
//
// The candidates are what SearchPlan finds, which always includes to send exactly the regions that ranks
// lack, and the greedy plan.
//
// Shape:  `type.shape` is the global shape; every extent >= 0.
// Layout: both on `mesh`, which is `cost_model`'s.
// Cost:   no communication here; some tens of microseconds, so callers keep plans
//         (dtensor/context/redistribution_cache.h).
// Errors: InvalidArgument if ndims or numbers of axes differ, and as CheckPartials; ResourceExhausted, with the least that was
//         found, if no plan meets the cap.
// Source: extends Rink et al., "Memory-efficient array redistribution", arXiv 2112.01075.
Redistribution PlanRedistribution(const Layout& from, const Layout& to, const TensorType& type,
                                  const DeviceMesh& mesh, const CostModel& cost_model,
                                  const PlanOptions& options = {});

// Predicted microseconds of a plan close to the best, found without a search: the greedy plan, or where
// nothing has to be reduced the direct move. For choosing between layouts.
double EstimateMicroseconds(const Layout& from, const Layout& to, const TensorType& type,
                            const DeviceMesh& mesh, const CostModel& cost_model);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_PLANNER_H_
