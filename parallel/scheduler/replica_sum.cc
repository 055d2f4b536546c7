#include "parallel/scheduler/replica_sum.h"

namespace weft {

Layout BeforeReplicaSum(const Layout& gradient, const Layout& at_rest) {
  Layout between = at_rest;
  bool scatters = false;
  for (const int axis : gradient.PartialAxes()) {
    if (at_rest.IsShard(axis)) {
      scatters = true;
    } else if (at_rest.IsReplicate(axis)) {
      between = between.WithPartial(axis, gradient.partial_op(axis));
    }
  }
  return scatters ? between : at_rest;
}

}  // namespace weft
