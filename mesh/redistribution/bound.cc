#include "mesh/redistribution/bound.h"

#include <algorithm>

#include "mesh/redistribution/move.h"
#include "mesh/redistribution/redistribution.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {

int64_t RedistributionBound(const Layout& from, const Layout& to, const TensorType& type,
                            const DeviceMesh& mesh) {
  CheckEnds(from, to, mesh);
  CheckOnMesh(from, type.shape, mesh);
  Layout before = from;
  Layout after = to;
  int64_t terms = 1;    // that are joined
  int64_t holders = 1;  // of an element at the end, and ranks to share the work: per place along Partial axes
  int64_t ranks = 1;    // that stay
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const bool stays = from.IsPartial(axis) && from.placement(axis) == to.placement(axis);
    if (from.IsPartial(axis)) before = before.WithReplicate(axis);
    if (to.IsPartial(axis)) after = after.WithReplicate(axis);
    if (stays) continue;
    ranks *= mesh.axis_size(axis);
    if (from.IsPartial(axis)) terms *= mesh.axis_size(axis);
    if (!to.IsShard(axis)) holders *= mesh.axis_size(axis);
  }
  if (terms == 1) return DescribeMove(before, after, type.shape, mesh).lacked * ItemSize(type.dtype);
  const int64_t receipts = type.shape.num_elements() * (terms - 1 + holders - 1);
  return std::max(MaxLocalElements(type.shape, to, mesh), (receipts + ranks - 1) / ranks) *
         ItemSize(type.dtype);
}

}  // namespace weft
