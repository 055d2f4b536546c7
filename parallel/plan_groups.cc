#include "parallel/plan_groups.h"

#include <set>
#include <variant>

#include "mesh/redistribution/move.h"
#include "mesh/redistribution/planner.h"

namespace weft {
namespace {

class GroupCollector {
 public:
  GroupCollector(const DeviceMesh& mesh, const CostModel& cost_model, DType dtype)
      : mesh_(mesh), cost_model_(cost_model), dtype_(dtype) {}

  void Add(AxisMask axes) {
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (mesh_.axis_size(axis) == 1) axes &= ~(1u << axis);
    }
    if (axes != 0) groups_.insert(axes);
  }

  void AddMove(const Layout& from, const Layout& to, const Shape& shape) {
    for (const RedistributionStep& step :
         PlanRedistribution(from, to, {dtype_, shape}, mesh_, cost_model_).steps) {
      if (Communicates(step.kind)) Add(MaskOf(step.axes));
    }
  }

  std::vector<AxisList> Groups() const {
    std::vector<AxisList> lists;
    for (AxisMask axes : groups_) lists.push_back(AxesIn(axes));
    return lists;
  }

 private:
  const DeviceMesh& mesh_;
  const CostModel& cost_model_;
  const DType dtype_;
  std::set<AxisMask> groups_;
};

AxisMask SplitAxes(const Layout& layout) {
  AxisMask axes = 0;
  for (int axis = 0; axis < layout.num_axes(); ++axis) axes |= layout.IsShard(axis) ? 1u << axis : 0;
  return axes;
}

}  // namespace

std::vector<AxisList> PlanGroups(Module& model, const ResolvedPlan& plan, const DeviceMesh& mesh,
                                 const CostModel& cost_model, DType dtype) {
  GroupCollector groups(mesh, cost_model, dtype);
  AxisMask batch = 0;  // axes that some input is split over
  for (const ResolvedModule& module : plan.modules) {
    for (const auto* pins : {&module.border.input, &module.border.output}) {
      for (const BorderPin& pin : *pins) groups.Add(1u << pin.axis);
    }
    for (const BorderPin& pin : module.border.input) {
      if (std::holds_alternative<Shard>(pin.value)) batch |= 1u << pin.axis;
    }
  }
  groups.Add(batch);  // the loss
  AxisMask split = 0;
  size_t index = 0;
  for (const Parameter* parameter : model.AllParameters()) {
    const ParameterLayouts& layouts = plan.parameters[index++].layouts;
    const Shape& shape = parameter->spec().shape;
    groups.AddMove(layouts.at_rest, layouts.compute, shape);
    // Each rank has the gradient of its part of the batch.
    Layout gradient = layouts.compute;
    for (int axis : AxesIn(batch & ~SplitAxes(layouts.compute))) gradient = gradient.WithPartial(axis);
    groups.AddMove(gradient, layouts.of_gradient(), shape);
    groups.AddMove(layouts.of_state(), layouts.at_rest, shape);
    split |= SplitAxes(layouts.of_gradient());
  }
  groups.Add(split);  // the norm of all gradients
  return groups.Groups();
}

}  // namespace weft
