#include "mesh/redistribution/price.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/planner.h"

namespace weft {
namespace {

std::string StepText(const RedistributionStep& step, const DeviceMesh& mesh) {
  const auto axis_name = [&](std::string* out, int axis) { out->append(mesh.axis_name(axis)); };
  return absl::StrCat(StepKindName(step.kind), "(", absl::StrJoin(step.axes, ",", axis_name), ")");
}

}  // namespace

RedistributionPrice PriceRedistribution(const Layout& from, const Layout& to, const TensorType& type,
                                        const DeviceMesh& mesh, const CostModel& cost_model) {
  RedistributionPrice price;
  if (from == to) return price;
  const Redistribution plan = PlanRedistribution(from, to, type, mesh, cost_model);
  price.microseconds = cost_model.Microseconds(plan, type);
  price.num_bytes = TotalBytes(plan, type, mesh);
  price.steps = absl::StrJoin(plan.steps, ", ", [&](std::string* out, const RedistributionStep& step) {
    out->append(StepText(step, mesh));
  });
  return price;
}

double RedistributionMicroseconds(const Layout& from, const Layout& to, const TensorType& type,
                                  const DeviceMesh& mesh, const CostModel& cost_model) {
  if (from == to) return 0;
  return EstimateMicroseconds(from, to, type, mesh, cost_model);
}

}  // namespace weft
