#include "dtensor/tape/gradient_layout.h"

namespace weft {

Layout GradientLayout(const Layout& source, const Layout& arriving, const Layout* used) {
  const auto stays = [&](int axis) {
    return source.IsPartial(axis) || (used != nullptr && source.IsReplicate(axis) && used->IsReplicate(axis));
  };
  Layout target = source;
  for (int axis = 0; axis < source.num_axes(); ++axis) {
    if (stays(axis)) target = target.WithReplicate(axis);
  }
  // In the order of arriving: nesting is part of the layout.
  for (int dim = 0; dim < source.ndim(); ++dim) {
    for (int axis : arriving.ShardAxes(dim)) {
      if (stays(axis)) target = target.WithShard(axis, dim);
    }
  }
  for (int axis : arriving.PartialAxes()) {
    if (stays(axis)) target = target.WithPartial(axis, arriving.partial_op(axis));
  }
  return target;
}

}  // namespace weft
