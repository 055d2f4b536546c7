#include "mesh/redistribution/search/builder.h"

#include <utility>

#include "runtime/base/error.h"

namespace weft {

void RedistributionBuilder::Append(StepKind kind, AxisMask axes, ReduceOp op, const Layout& result) {
  if (result == state()) return;
  plan_.steps.push_back({.kind = kind, .axes = AxesIn(axes), .op = op, .result = result});
}

void RedistributionBuilder::Slice(const Layout& result) {
  if (result == state()) return;
  if (!plan_.steps.empty() && plan_.steps.back().kind == StepKind::kSlice) plan_.steps.pop_back();
  Append(StepKind::kSlice, ChangedAxes(state(), result, mesh_), ReduceOp::kSum, result);
}

void RedistributionBuilder::MoveTo(const Layout& result, const Shape& shape) {
  const Move move = DescribeMove(state(), result, shape, mesh_);
  if (move.kind == StepKind::kSlice) {
    Slice(result);
  } else {
    Append(move.kind, move.axes, ReduceOp::kSum, result);
  }
}

void RedistributionBuilder::EnterPartials(const Layout& target) {
  for (ReduceOp op : kAllReduceOps) {
    AxisMask axes = 0;
    Layout result = state();
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (!target.IsPartial(axis) || state().IsPartial(axis) || target.partial_op(axis) != op) continue;
      axes |= 1u << axis;
      result = result.WithPartial(axis, op);
    }
    Append(StepKind::kToPartial, axes, op, result);
  }
}

Redistribution RedistributionBuilder::Finish() && {
  WEFT_CHECK(state() == plan_.to, "stuck in ", plan_.ToString(), ", going to ", plan_.to.ToString());
  return std::move(plan_);
}

}  // namespace weft
