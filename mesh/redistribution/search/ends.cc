#include "mesh/redistribution/search/ends.h"

#include <algorithm>

#include "absl/algorithm/container.h"

namespace weft {

RedistributionEnds::RedistributionEnds(const Layout& from, const Layout& to, const DeviceMesh& mesh)
    : mesh_(mesh), from_(WithoutSingleRanks(from)), to_(WithoutSingleRanks(to)) {}

Layout RedistributionEnds::WithoutSingleRanks(Layout layout) const {
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (mesh_.axis_size(axis) == 1) layout = layout.WithReplicate(axis);
  }
  return layout;
}

uint32_t RedistributionEnds::NamedDims() const {
  uint32_t dims = 0;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (from_.IsShard(axis)) dims |= 1u << from_.shard_dim(axis);
    if (to_.IsShard(axis)) dims |= 1u << to_.shard_dim(axis);
  }
  return dims;
}

AxisMask RedistributionEnds::Pending(const Layout& layout) const {
  AxisMask pending = 0;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (!layout.IsPartial(axis)) continue;
    const bool stays = to_.IsPartial(axis) && to_.partial_op(axis) == layout.partial_op(axis);
    if (!stays) pending |= 1u << axis;
  }
  return pending;
}

size_t RedistributionEnds::NumSettled(const AxisList& now, int dim) const {
  const AxisList target = to_.ShardAxes(dim);
  size_t settled = 0;
  while (settled < std::min(now.size(), target.size()) && now[settled] == target[settled]) ++settled;
  return settled;
}

Layout RedistributionEnds::SlicedAsFarAsPossible(Layout layout) const {
  for (bool more = true; more;) {
    more = false;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (!layout.IsReplicate(axis) || !to_.IsShard(axis)) continue;
      const int dim = to_.shard_dim(axis);
      int num_there = 0;
      bool in_place = true;
      for (int other = 0; other < mesh_.num_axes(); ++other) {
        if (!layout.IsShard(other) || layout.shard_dim(other) != dim) continue;
        ++num_there;
        in_place &= EndsOn(other, dim) && to_.shard_position(other) == layout.shard_position(other);
      }
      if (!in_place || num_there != to_.shard_position(axis)) continue;
      layout = layout.WithShard(axis, dim);
      more = true;
    }
  }
  return layout;
}

Layout RedistributionEnds::EndBeforePartials(const Layout& layout) const {
  Layout end = to_;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (end.IsPartial(axis) && !layout.IsPartial(axis)) end = end.WithReplicate(axis);
  }
  return end;
}

Layout RedistributionEnds::InFinalOrder(const Layout& layout, int dim) const {
  Layout ordered = layout;
  const AxisList now = layout.ShardAxes(dim);
  for (int axis : now) ordered = ordered.WithReplicate(axis);
  for (int axis : to_.ShardAxes(dim)) {
    if (absl::c_linear_search(now, axis)) ordered = ordered.WithShard(axis, dim);
  }
  for (int axis : now) {
    if (!EndsOn(axis, dim)) ordered = ordered.WithShard(axis, dim);
  }
  return ordered;
}

}  // namespace weft
