#include "mesh/redistribution_planner.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Walks a layout to its target one step at a time. An axis that has reached its final place, with all the
// axes outside it on that dim, is settled and never moves again; every step settles an axis or makes one
// Replicate, so the walk ends.
class Planner {
 public:
  // Partial axes in the bit set `eager` are all-reduced before any gather, even if they end as shards; the
  // others wait for their place.
  Planner(const Layout& from, const Layout& to, const DeviceMesh& mesh, uint32_t eager)
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
      if (state_.IsReplicate(axis)) {
        slice = {.kind = StepKind::kSlice, .axes = {axis}, .to_dim = dim};
      } else if (state_.IsPartial(axis)) {
        scatter = {
            .kind = StepKind::kReduceScatter, .axes = {axis}, .to_dim = dim, .op = state_.partial_op(axis)};
      } else if (const int from_dim = state_.shard_dim(axis); state_.ShardAxes(from_dim).back() == axis) {
        exchange = {.kind = StepKind::kAllToAll, .axes = {axis}, .from_dim = from_dim, .to_dim = dim};
      }
    }
    for (RedistributionStep* step : {&slice, &scatter, &exchange}) {
      if (step->axes.empty()) continue;
      const Layout result = state_.WithShard(step->axes[0], step->to_dim);
      Append(std::move(*step), result);
      return true;
    }
    return false;
  }

  // All-reduces the Partial axes of one kind that do not end as shards, and those in `eager_`.
  bool ReduceOneKind() {
    for (ReduceOp op : kAllReduceOps) {
      RedistributionStep step = {.kind = StepKind::kAllReduce, .op = op};
      Layout result = state_;
      for (int axis : state_.PartialAxes()) {
        if (state_.partial_op(axis) != op || to().placement(axis) == state_.placement(axis)) continue;
        if (to().IsShard(axis) && (eager_ >> axis & 1) == 0) continue;
        step.axes.push_back(axis);
        result = result.WithReplicate(axis);
      }
      if (step.axes.empty()) continue;
      Append(std::move(step), result);
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
    Append({.kind = StepKind::kAllGather, .axes = {axis}, .from_dim = best_dim}, state_.WithReplicate(axis));
    return true;
  }

  void EnterPartials() {
    for (int axis : to().PartialAxes()) {
      if (state_.IsPartial(axis)) continue;
      const ReduceOp op = to().partial_op(axis);
      Append({.kind = StepKind::kToPartial, .axes = {axis}, .op = op}, state_.WithPartial(axis, op));
    }
  }

  void Append(RedistributionStep step, const Layout& result) {
    step.result = result;
    state_ = result;
    plan_.steps.push_back(std::move(step));
  }

  const DeviceMesh& mesh_;
  const uint32_t eager_;
  Layout state_;
  Redistribution plan_;
};

void CheckOnMesh(const Layout& layout, const DeviceMesh& mesh) {
  WEFT_REQUIRE(layout.num_axes() == mesh.num_axes(), "layout ", layout.ToString(), " is for ",
               layout.num_axes(), " mesh axes, but mesh (", mesh.ToString(), ") has ", mesh.num_axes());
}

// How many ranks hold each piece, or a term of it.
int64_t NumCopies(const Layout& layout, const DeviceMesh& mesh) {
  int64_t copies = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!layout.IsShard(axis)) copies *= mesh.axis_size(axis);
  }
  return copies;
}

// For each index along `axes.back()`, what all the pieces of a dim at that index add up to.
std::vector<int64_t> ExtentByInnermostIndex(int64_t extent, const AxisList& axes, const DeviceMesh& mesh) {
  std::vector<Range> pieces = {{0, extent}};
  for (int axis : axes) {
    std::vector<Range> inner;
    inner.reserve(pieces.size() * mesh.axis_size(axis));
    for (const Range& piece : pieces) {
      for (int64_t i = 0; i < mesh.axis_size(axis); ++i)
        inner.push_back(ChunkOf(piece, mesh.axis_size(axis), i));
    }
    pieces = std::move(inner);
  }
  std::vector<int64_t> sums(mesh.axis_size(axes.back()));
  for (size_t i = 0; i < pieces.size(); ++i) sums[i % sums.size()] += pieces[i].size;
  return sums;
}

// Elements that ranks hold both before and after an all-to-all, over all ranks. Boxes are products, and the
// pieces of a dim tile it, so the sum over ranks splits by dims; only the moved axis ties two of them
// together. A rank keeps its own chunk of the dim that is gathered, and its new chunk of the dim that is
// split.
int64_t NumKept(const RedistributionStep& step, const Layout& from, const Shape& shape,
                const DeviceMesh& mesh) {
  const std::vector<int64_t> gathered =
      ExtentByInnermostIndex(shape[step.from_dim], from.ShardAxes(step.from_dim), mesh);
  const std::vector<int64_t> split =
      ExtentByInnermostIndex(shape[step.to_dim], step.result.ShardAxes(step.to_dim), mesh);
  int64_t kept = 0;
  for (size_t i = 0; i < gathered.size(); ++i) kept += gathered[i] * split[i];
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (dim != step.from_dim && dim != step.to_dim) kept *= shape[dim];
  }
  return kept * NumCopies(from, mesh);
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

Redistribution PlanRedistribution(const Layout& from, const Layout& to, const DeviceMesh& mesh) {
  WEFT_REQUIRE(from.ndim() == to.ndim(), "cannot redistribute ", from.ToString(mesh), " to ",
               to.ToString(mesh), ": one has ", from.ndim(), " dims, the other ", to.ndim());
  CheckOnMesh(from, mesh);
  CheckOnMesh(to, mesh);
  // To wait costs a reduce-scatter of what gathers have made of the pieces; not to, twice as much of small
  // pieces, or little where others of the kind are all-reduced anyway. Few axes ever have the choice, so all
  // choices are tried.
  uint32_t may_wait = 0;
  for (int axis : from.PartialAxes()) may_wait |= to.IsShard(axis) ? 1u << axis : 0;
  Redistribution best = Planner(from, to, mesh, /*eager=*/0).Run();
  for (uint32_t eager = may_wait; eager != 0; eager = (eager - 1) & may_wait) {
    Redistribution plan = Planner(from, to, mesh, eager).Run();
    if (Weight(plan, mesh) < Weight(best, mesh)) best = std::move(plan);
  }
  return best;
}

int64_t StepBytes(const RedistributionStep& step, const Layout& from, const Shape& shape, DType dtype,
                  const DeviceMesh& mesh) {
  WEFT_REQUIRE(from.ndim() == shape.ndim(), "layout ", from.ToString(mesh), " has ", from.ndim(),
               " dims, but the tensor's shape is ", shape.ToString());
  CheckOnMesh(from, mesh);
  int64_t group_size = 1;
  for (int axis : step.axes) group_size *= mesh.axis_size(axis);
  // Summed over all ranks, the pieces of a layout hold every element as often as it has copies.
  const int64_t held = shape.num_elements() * NumCopies(from, mesh);
  switch (step.kind) {
    case StepKind::kAllGather:
      return held * (group_size - 1) * ItemSize(dtype);
    case StepKind::kReduceScatter:
      return held / group_size * (group_size - 1) * ItemSize(dtype);
    case StepKind::kAllReduce:
      return 2 * (held / group_size) * (group_size - 1) * ItemSize(dtype);
    case StepKind::kAllToAll:
      return (held - NumKept(step, from, shape, mesh)) * ItemSize(dtype);
    case StepKind::kSlice:
    case StepKind::kToPartial:
      break;
  }
  return 0;
}

int64_t TotalBytes(const Redistribution& plan, const Shape& shape, DType dtype, const DeviceMesh& mesh) {
  int64_t bytes = 0;
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    bytes += StepBytes(step, from, shape, dtype, mesh);
    from = step.result;
  }
  return bytes;
}

}  // namespace weft
