#include "mesh/redistribution/planner.h"

#include <algorithm>
#include <utility>

#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/greedy.h"
#include "mesh/redistribution/move.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// The least memory that any plan was found to take, when none meets the cap.
[[noreturn]] void ThrowCapTooSmall(const PlanRequest& request, int64_t greedy_peak, const DeviceMesh& mesh,
                                   const CostModel& cost_model) {
  int64_t least = greedy_peak;
  PlanRequest lower = request;
  // Each round asks for less than the last plan took; there are few different ones.
  for (lower.max_peak_bytes = greedy_peak - 1;;) {
    const std::optional<Redistribution> plan = SearchPlan(lower, mesh, cost_model);
    if (!plan.has_value()) break;
    least = PeakBytes(*plan, request.type, mesh);
    lower.max_peak_bytes = least - 1;
  }
  Throw(absl::StatusCode::kResourceExhausted, "cannot redistribute ", request.type.ToString(), " from ",
        request.from.ToString(mesh), " to ", request.to.ToString(mesh), " with ", request.max_peak_bytes,
        " bytes a rank: every plan that moves no more than the greedy one takes at least ", least);
}

}  // namespace

Redistribution PlanRedistribution(const Layout& from, const Layout& to, const TensorType& type,
                                  const DeviceMesh& mesh, const CostModel& cost_model,
                                  const PlanOptions& options) {
  CheckEnds(from, to, mesh);
  CheckOnMesh(from, type.shape, mesh);
  CheckPartials(from, type.dtype, mesh);
  CheckPartials(to, type.dtype, mesh);
  if (from == to) return {from, to, {}};
  Redistribution greedy = PlanGreedy(from, to, mesh);
  const int64_t greedy_bytes = WorstRankBytes(greedy, type, mesh);
  PlanRequest request{.from = from,
                      .to = to,
                      .type = type,
                      .objective = options.objective,
                      .max_bytes = greedy_bytes,
                      .max_peak_bytes = options.memory_cap.value_or(INT64_MAX)};
  std::optional<Redistribution> found = SearchPlan(request, mesh, cost_model);
  const int64_t greedy_peak = options.memory_cap.has_value() ? PeakBytes(greedy, type, mesh) : int64_t{0};
  if (greedy_peak > request.max_peak_bytes) {
    if (!found.has_value()) ThrowCapTooSmall(request, greedy_peak, mesh, cost_model);
    return *std::move(found);
  }
  if (!found.has_value()) return greedy;
  const int64_t bytes = WorstRankBytes(*found, type, mesh);
  if (options.objective == PlanObjective::kBytes && bytes != greedy_bytes) return *std::move(found);
  // Of equal ones the one found, which has no more steps.
  const double us = cost_model.Microseconds(*found, type);
  return us <= cost_model.Microseconds(greedy, type) * (1 + 1e-9) ? *std::move(found) : std::move(greedy);
}

double EstimateMicroseconds(const Layout& from, const Layout& to, const TensorType& type,
                            const DeviceMesh& mesh, const CostModel& cost_model) {
  if (from == to) return 0;
  const double greedy = cost_model.Microseconds(PlanGreedy(from, to, mesh), type);
  if (greedy == 0 || from.HasPartial() || to.HasPartial()) return greedy;
  const Move move = DescribeMove(from, to, type.shape, mesh);
  return std::min(greedy, cost_model.Microseconds(MoveTraffic(move, type.dtype, mesh)));
}

}  // namespace weft
