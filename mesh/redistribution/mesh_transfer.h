#ifndef WEFT_MESH_REDISTRIBUTION_MESH_TRANSFER_H_
#define WEFT_MESH_REDISTRIBUTION_MESH_TRANSFER_H_

#include <cstdint>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/redistribution/region.h"
#include "runtime/tensor/shape.h"

namespace weft {

// How one tensor goes from a mesh to another: of any shapes, over other ranks, the same ones, or some of
// them. Data: who holds what and who wants what. The ranks of either mesh take part, and no others.
struct MeshTransfer {
  std::vector<int> ranks;      // world ranks, ascending
  std::vector<Region> held;    // by index in `ranks`; empty for ranks outside the source mesh
  std::vector<Region> wanted;  // and outside the target mesh. A scalar's regions have one dim of extent 1

  bool operator==(const MeshTransfer&) const = default;

  // What world rank `rank`, one of `ranks`, keeps, sends and receives; peers are indices in `ranks`.
  RegionExchange PartOf(int rank) const;
  // Elements that all ranks together receive from others.
  int64_t NumMoved() const;
};

// Layout: without Partial: reduce on the source mesh first (see ReducedLayout), enter Partial on the target.
// Errors: InvalidArgument if a layout does not fit its mesh or the shape, or is Partial.
MeshTransfer PlanMeshTransfer(const DeviceMesh& from_mesh, const Layout& from, const DeviceMesh& to_mesh,
                              const Layout& to, const Shape& shape);

// `layout` with its Partial axes reduced: each becomes the innermost shard of the dim that has most left for
// it, which moves least, or Replicate if no dim can be cut into as many pieces.
Layout ReducedLayout(const Layout& layout, const Shape& shape, const DeviceMesh& mesh);

// `layout` with its Partial axes replicated.
Layout WithoutPartial(Layout layout);

// Whether every Partial axis is a sum. The pieces then add up to the value, if replicas count once.
bool AddsUp(const Layout& layout);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_MESH_TRANSFER_H_
