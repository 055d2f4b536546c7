#include "mesh/redistribution/greedy.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace weft {
namespace {

// Walks a layout to its target one step at a time. An axis that has reached its final place, with all the
// axes outside it on that dim, is settled and never moves again; every step settles an axis or makes one
// Replicate, so the walk ends.
class GreedyPlanner {
 public:
  // Partial axes in the bit set `eager` are all-reduced before any gather, even if they end as shards; the
  // others wait for their place.
  GreedyPlanner(const Layout& from, const Layout& to, const DeviceMesh& mesh, uint32_t eager)
      : mesh_(mesh), eager_(eager), state_(from), plan_{.from = from, .to = to, .steps = {}} {}

  Redistribution Run() && {
    while (SettleOne() || ReduceOneKind() || GatherOne()) {
    }
    EnterPartials();
    WEFT_CHECK(state_ == plan_.to, "stuck in ", plan_.ToString(), ", going to ", plan_.to.ToString());
    return std::move(plan_);
  }

 private:
  const Layout& to() const { return plan_.to; }

  // How many of the outermost axes of `dim` are settled.
  size_t NumSettled(int dim) const {
    const AxisList now = state_.ShardAxes(dim);
    const AxisList target = to().ShardAxes(dim);
    return std::mismatch(now.begin(), now.end(), target.begin(), target.end()).first - now.begin();
  }

  // Whether an axis that splits `dim` ends on another dim, so that an all-to-all may take it there.
  bool EndsOnAnotherDim(int axis, int dim) const { return to().IsShard(axis) && to().shard_dim(axis) != dim; }

  // Puts one axis into its final place, as the innermost on its dim: a slice if any dim allows one, else a
  // reduce-scatter, else an all-to-all. False if no dim has room for the axis that it waits for.
  bool SettleOne() {
    RedistributionStep slice, scatter, exchange;
    for (int dim = 0; dim < to().ndim(); ++dim) {
      const size_t num_settled = NumSettled(dim);
      const AxisList target = to().ShardAxes(dim);
      if (num_settled == target.size() || num_settled < state_.ShardAxes(dim).size()) continue;
      const int axis = target[num_settled];
      const Layout result = state_.WithShard(axis, dim);
      if (state_.IsReplicate(axis)) {
        slice = {.kind = StepKind::kSlice, .axes = {axis}, .result = result};
      } else if (state_.IsPartial(axis)) {
        scatter = {.kind = StepKind::kReduceScatter,
                   .axes = {axis},
                   .op = state_.partial_op(axis),
                   .result = result};
      } else if (state_.ShardAxes(state_.shard_dim(axis)).back() == axis) {
        exchange = {.kind = StepKind::kAllToAll, .axes = {axis}, .result = result};
      }
    }
    for (RedistributionStep* step : {&slice, &scatter, &exchange}) {
      if (step->axes.empty()) continue;
      Append(std::move(*step));
      return true;
    }
    return false;
  }

  // All-reduces the Partial axes of one kind that do not end as shards, and those in `eager_`.
  bool ReduceOneKind() {
    for (ReduceOp op : kAllReduceOps) {
      RedistributionStep step = {.kind = StepKind::kAllReduce, .op = op, .result = state_};
      for (int axis : state_.PartialAxes()) {
        if (state_.partial_op(axis) != op || to().placement(axis) == state_.placement(axis)) continue;
        if (to().IsShard(axis) && (eager_ >> axis & 1) == 0) continue;
        step.axes.push_back(axis);
        step.result = step.result.WithReplicate(axis);
      }
      if (step.axes.empty()) continue;
      Append(std::move(step));
      return true;
    }
    return false;
  }

  // Gathers the innermost unsettled axis of one dim. Dims that other axes wait for come first, for what comes
  // free then moves before pieces grow further; then axes that must be gathered in any case; then small ones.
  bool GatherOne() {
    using Preference = std::tuple<bool, bool, int64_t>;
    Preference best;
    int best_dim = -1;
    for (int dim = 0; dim < state_.ndim(); ++dim) {
      const AxisList now = state_.ShardAxes(dim);
      const size_t num_settled = NumSettled(dim);
      if (num_settled == now.size()) continue;
      const bool is_wanted = num_settled < to().ShardAxes(dim).size();
      const Preference preference = {!is_wanted, EndsOnAnotherDim(now.back(), dim),
                                     mesh_.axis_size(now.back())};
      if (best_dim >= 0 && preference >= best) continue;
      best = preference;
      best_dim = dim;
    }
    if (best_dim < 0) return false;
    const int axis = state_.ShardAxes(best_dim).back();
    Append({.kind = StepKind::kAllGather, .axes = {axis}, .result = state_.WithReplicate(axis)});
    return true;
  }

  void EnterPartials() {
    for (int axis : to().PartialAxes()) {
      if (state_.IsPartial(axis)) continue;
      const ReduceOp op = to().partial_op(axis);
      Append(
          {.kind = StepKind::kToPartial, .axes = {axis}, .op = op, .result = state_.WithPartial(axis, op)});
    }
  }

  void Append(RedistributionStep step) {
    state_ = step.result;
    plan_.steps.push_back(std::move(step));
  }

  const DeviceMesh& mesh_;
  const uint32_t eager_;
  Layout state_;
  Redistribution plan_;
};

// How many ranks hold each piece, or a term of it.
int64_t NumCopies(const Layout& layout, const DeviceMesh& mesh) {
  int64_t copies = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!layout.IsShard(axis)) copies *= mesh.axis_size(axis);
  }
  return copies;
}

// Elements that a plan moves a rank where all sizes divide evenly, and its number of steps.
std::pair<double, size_t> Weight(const Redistribution& plan, const DeviceMesh& mesh) {
  // Of a tensor of num_ranks^2 elements: all quotients are whole, so that equal plans come out equal.
  const double num_ranks = static_cast<double>(mesh.num_ranks());
  double moved = 0;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    const double local = num_ranks * static_cast<double>(NumCopies(from, mesh));
    double group_size = 1;
    for (int axis : step.axes) group_size *= static_cast<double>(mesh.axis_size(axis));
    if (step.kind == StepKind::kAllGather) moved += local * (group_size - 1);
    if (step.kind == StepKind::kReduceScatter || step.kind == StepKind::kAllToAll) {
      moved += local / group_size * (group_size - 1);
    }
    if (step.kind == StepKind::kAllReduce) moved += 2 * (local / group_size) * (group_size - 1);
    from = step.result;
  }
  return {moved, plan.steps.size()};
}

}  // namespace

Redistribution PlanGreedy(const Layout& from, const Layout& to, const DeviceMesh& mesh) {
  CheckEnds(from, to, mesh);
  // To wait costs a reduce-scatter of what gathers have made of the pieces; not to, twice as much of small
  // pieces, or little where others of the kind are all-reduced anyway. Few axes ever have the choice, so all
  // choices are tried.
  uint32_t may_wait = 0;
  for (int axis : from.PartialAxes()) may_wait |= to.IsShard(axis) ? 1u << axis : 0;
  Redistribution best = GreedyPlanner(from, to, mesh, /*eager=*/0).Run();
  for (uint32_t eager = may_wait; eager != 0; eager = (eager - 1) & may_wait) {
    Redistribution plan = GreedyPlanner(from, to, mesh, eager).Run();
    if (Weight(plan, mesh) < Weight(best, mesh)) best = std::move(plan);
  }
  return best;
}

}  // namespace weft
