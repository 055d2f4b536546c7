#include "parallel/plan_groups.h"

#include <set>
#include <variant>

#include "mesh/redistribution/move.h"
#include "mesh/redistribution/planner.h"
#include "parallel/scheduler/replica_sum.h"

namespace weft {
namespace {

class GroupCollector {
 public:
  GroupCollector(const DeviceMesh& mesh, const CostModel& cost_model)
      : mesh_(mesh), cost_model_(cost_model) {}

  void Add(AxisMask axes) {
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (mesh_.axis_size(axis) == 1) axes &= ~(1u << axis);
    }
    if (axes != 0) groups_.insert(axes);
  }

  void AddMove(const Layout& from, const Layout& to, const Shape& shape, DType dtype) {
    for (const RedistributionStep& step :
         PlanRedistribution(from, to, {dtype, shape}, mesh_, cost_model_).steps) {
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
  std::set<AxisMask> groups_;
};

AxisMask SplitAxes(const Layout& layout) {
  AxisMask axes = 0;
  for (int axis = 0; axis < layout.num_axes(); ++axis) axes |= layout.IsShard(axis) ? 1u << axis : 0;
  return axes;
}

}  // namespace

PlannedGroups PlanGroups(Module& model, const ResolvedPlan& plan, int part, const DeviceMesh& mesh,
                         const CostModel& cost_model, DType dtype, DType compute_dtype) {
  GroupCollector groups(mesh, cost_model), params(mesh, cost_model), grads(mesh, cost_model),
      replicas(mesh, cost_model);
  AxisMask batch = 0;  // axes that some input is split over
  for (const ResolvedModule& module : plan.modules) {
    if (module.part != part) continue;  // its axes are others
    for (const auto* pins : {&module.border.input, &module.border.output}) {
      for (const BorderPin& pin : *pins) groups.Add(1u << pin.axis);
    }
    for (const BorderPin& pin : module.border.input) {
      if (std::holds_alternative<Shard>(pin.value)) batch |= 1u << pin.axis;
    }
  }
  groups.Add(batch);                        // the loss
  groups.Add((1u << mesh.num_axes()) - 1);  // what all ranks agree on
  AxisMask of_several = 0;                  // axes of several ranks
  for (int axis = 0; axis < mesh.num_axes(); ++axis) of_several |= mesh.axis_size(axis) > 1 ? 1u << axis : 0;
  AxisMask split = 0;
  size_t index = 0;
  for (const Parameter* parameter : model.RegisteredParameters()) {
    const ResolvedParameter& resolved = plan.parameters[index++];
    const ParameterLayouts& layouts = resolved.layouts;
    if (!parameter->is_here()) continue;
    const DType compute = resolved.compute_dtype.value_or(compute_dtype);
    const DType reduce = resolved.reduce_dtype.value_or(dtype);
    const Shape& shape = parameter->spec().shape;
    groups.AddMove(layouts.at_rest, layouts.compute, shape, compute);
    params.AddMove(layouts.at_rest, layouts.compute, shape, compute);
    params.AddMove(layouts.of_state(), layouts.at_rest, shape, dtype);
    // Each rank has the gradient of its part of the batch.
    Layout gradient = layouts.compute;
    for (int axis : AxesIn(batch & ~SplitAxes(layouts.compute))) gradient = gradient.WithPartial(axis);
    const Layout between = BeforeReplicaSum(gradient, layouts.of_gradient());
    if (resolved.communication.compresses()) {
      const AxisMask summed = MaskOf(resolved.communication.axes) & of_several;
      const AxisMask splits = summed & SplitAxes(layouts.of_gradient());
      grads.Add(splits != 0 ? splits : summed);
      if (splits != 0) replicas.Add(summed & ~splits);
    }
    grads.AddMove(gradient, between, shape, reduce);
    replicas.AddMove(between, layouts.of_gradient(), shape, reduce);
    groups.AddMove(layouts.of_gradient(), layouts.of_state(), shape, dtype);
    split |= SplitAxes(layouts.of_gradient());
  }
  groups.Add(split);  // the norm of all gradients
  PlannedGroups planned = {.inline_groups = groups.Groups(), .lane_groups = {}};
  for (const AxisList& axes : params.Groups()) planned.lane_groups.push_back({Lane::kParam, axes});
  for (const AxisList& axes : grads.Groups()) planned.lane_groups.push_back({Lane::kGrad, axes});
  for (const AxisList& axes : replicas.Groups()) planned.lane_groups.push_back({Lane::kReplica, axes});
  return planned;
}

}  // namespace weft
