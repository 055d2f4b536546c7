#include "mesh/redistribution/cost_model.h"

#include <algorithm>
#include <utility>

namespace weft {

CostModel::CostModel(const DeviceMesh& mesh, Machine machine) : mesh_(mesh), machine_(std::move(machine)) {
  machine_.Check();
  for (const MeshAxis& axis : mesh.axes()) costs_.push_back(machine_.Axis(axis.name));
}

double CostModel::StepMicroseconds(const RedistributionStep& step, const Layout& from,
                                   const TensorType& type) const {
  return Microseconds(WorstRankTraffic(step, from, type, mesh_));
}

double CostModel::Microseconds(const StepTraffic& traffic) const {
  if (traffic.rounds == 0 && traffic.bytes == 0) return 0;
  double slowest = 0;
  for (int axis = 0; traffic.axes >> axis != 0; ++axis) {
    if ((traffic.axes >> axis & 1) == 0) continue;
    slowest = std::max(slowest, costs_[axis].alpha_us() * static_cast<double>(traffic.rounds) +
                                    costs_[axis].us_per_byte() * static_cast<double>(traffic.bytes));
  }
  return kStepMicroseconds + slowest;
}

double CostModel::Microseconds(const Redistribution& plan, const TensorType& type) const {
  double total = 0;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    total += StepMicroseconds(step, from, type);
    from = step.result;
  }
  return total;
}

}  // namespace weft
