// Where a unit's copies rest between forward and backward, if that is a part of an axis: a node, say.

#ifndef WEFT_PARALLEL_SCHEDULER_SMALLER_GROUP_H_
#define WEFT_PARALLEL_SCHEDULER_SMALLER_GROUP_H_

#include <cstdint>

#include "dtensor/context/lane.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "mesh/layout.h"

namespace weft {

// An axis of n ranks as n / size groups of `size` neighbours along it. Of a tensor that is whole along the axis, each
// member of a group keeps its part: what is cut so is gathered again within the group, by the same elements.
//
// Works on a mesh of its own, over the same ranks and rank state, in which the axis is two.
// Threads: the rank's thread.
class SmallerGroup {
 public:
  // Makes the group's communicators, on `lane` too: every rank of the mesh makes it alike.
  // Errors: InvalidArgument unless 1 < size < n, and size divides n.
  SmallerGroup(const IntrusivePtr<MeshContext>& context, int axis, int64_t size, Lane lane);

  // This rank's part of dim `dim` of `whole`, in memory of its own.
  // Layout: `whole` is Replicate along the axis.
  DTensor PartOf(const DTensor& whole, int dim) const;

  // The layout, on the parts' mesh, of what is to be gathered: `whole` as it lay.
  Layout Inside(const Layout& whole) const;
  // What a gather to Inside(layout) brought, on the mesh it came from. May be pending.
  DTensor Outside(const DTensor& gathered, const Layout& layout) const;

 private:
  const IntrusivePtr<MeshContext> outer_;
  const int axis_;
  IntrusivePtr<MeshContext>
      inner_;  // the mesh in which the axis is two: `axis_` the groups, the next the members
};

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_SMALLER_GROUP_H_
