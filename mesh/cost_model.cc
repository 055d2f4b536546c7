#include "mesh/cost_model.h"

#include <algorithm>
#include <utility>

#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {

CostModel::CostModel(const DeviceMesh& mesh) : mesh_(mesh), costs_(mesh.num_axes()) {}

CostModel::CostModel(const DeviceMesh& mesh, std::vector<AxisCost> costs)
    : mesh_(mesh), costs_(std::move(costs)) {
  WEFT_REQUIRE(static_cast<int>(costs_.size()) == mesh.num_axes(), "mesh (", mesh.ToString(), ") has ",
               mesh.num_axes(), " axes, but ", costs_.size(), " costs were given");
}

double CostModel::StepMicroseconds(const RedistributionStep& step, const Layout& from, const Shape& shape,
                                   DType dtype) const {
  const auto local_bytes = [&](const Layout& layout) {
    return static_cast<double>(MaxLocalElements(shape, layout, mesh_) * ItemSize(dtype));
  };
  double rounds = 1;  // of n-1 messages each
  double bytes = 0;   // that one round passes by a rank; a message is an n-th of them
  switch (step.kind) {
    case StepKind::kAllGather:
      bytes = local_bytes(step.result);
      break;
    case StepKind::kReduceScatter:
    case StepKind::kAllToAll:
      bytes = local_bytes(from);
      break;
    case StepKind::kAllReduce:
      rounds = 2;
      bytes = local_bytes(from);
      break;
    case StepKind::kSlice:
    case StepKind::kToPartial:
      return 0;
  }
  double group_size = 1;
  for (int axis : step.axes) group_size *= static_cast<double>(mesh_.axis_size(axis));
  double slowest = 0;
  for (int axis : step.axes) {
    const AxisCost& cost = costs_[axis];
    slowest = std::max(slowest, cost.alpha_us + cost.us_per_byte * bytes / group_size);
  }
  return rounds * (group_size - 1) * slowest;
}

double CostModel::Microseconds(const Redistribution& plan, const Shape& shape, DType dtype) const {
  double total = 0;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    total += StepMicroseconds(step, from, shape, dtype);
    from = step.result;
  }
  return total;
}

}  // namespace weft
