#ifndef WEFT_MESH_REDISTRIBUTION_SEARCH_SEARCH_H_
#define WEFT_MESH_REDISTRIBUTION_SEARCH_SEARCH_H_

#include <cstdint>
#include <optional>

#include "mesh/redistribution/cost_model.h"
#include "mesh/redistribution/redistribution.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What a plan is the least of.
enum class PlanObjective : uint8_t {
  kTime,   // predicted time
  kBytes,  // bytes that the worst rank receives; of equal ones, predicted time
};

struct PlanRequest {
  Layout from;
  Layout to;
  TensorType type;
  PlanObjective objective = PlanObjective::kTime;
  int64_t max_bytes = INT64_MAX;       // that the worst rank may receive
  int64_t max_peak_bytes = INT64_MAX;  // that a rank may hold, see PeakBytes
};

// A best-first search over layouts: from `from`, by collectives over any sub-product of axes, always with the
// shortest move to the end as one way to finish. Partials are reduced before anything is gathered. None if no
// plan that it looks at keeps within the limits.
//
// With kTime it looks at layouts that split the dims that either end names and the widest of the others, with
// kBytes all. An axis that both ends replicate shares in reductions, where that is worth a gather at the end.
// An axis that stays in its place, with those outside it on its dim, never moves. Stops after a bounded
// number of layouts, which with kBytes and up to three axes is all of them.
//
// The same on every rank.
// Layout: on `mesh`, which is `cost_model`'s.
std::optional<Redistribution> SearchPlan(const PlanRequest& request, const DeviceMesh& mesh,
                                         const CostModel& cost_model);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_SEARCH_SEARCH_H_
