#include "mesh/redistribution/mesh_transfer.h"

#include <algorithm>

#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// What `rank` holds under `layout`; nothing if it is not in the mesh.
Region RegionOf(int rank, const Layout& layout, const DeviceMesh& mesh, const Shape& shape) {
  if (!mesh.Contains(rank)) {
    Region none = {shape, shape};
    if (shape.ndim() == 0) none = {{0}, {0}};
    for (int dim = 0; dim < none.shape.ndim(); ++dim) none.shape[dim] = none.offset[dim] = 0;
    return none;
  }
  if (shape.ndim() == 0) return {{0}, {1}};
  const ShardBox box = LocalBox(shape, layout, mesh, mesh.CoordinateOf(rank));
  return {box.offset, box.shape};
}

void CheckEnd(const Layout& layout, const DeviceMesh& mesh, const Shape& shape) {
  WEFT_REQUIRE(layout.num_axes() == mesh.num_axes() && layout.ndim() == shape.ndim(), "layout ",
               layout.ToString(), " has ", layout.ndim(), " dims over ", layout.num_axes(),
               " axes; the tensor's shape is ", shape.ToString(), " and its mesh (", mesh.ToString(), ")");
  WEFT_REQUIRE(!layout.HasPartial(), "a transfer between meshes moves whole values, not the terms of ",
               layout.ToString(mesh), "; reduce them first");
}

}  // namespace

RegionExchange MeshTransfer::PartOf(int rank) const {
  const auto place = std::lower_bound(ranks.begin(), ranks.end(), rank);
  WEFT_REQUIRE(place != ranks.end() && *place == rank, "rank ", rank, " is in neither mesh of the transfer");
  return PlanRegionExchange(held, wanted, static_cast<int>(place - ranks.begin()));
}

int64_t MeshTransfer::NumMoved() const {
  int64_t moved = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    moved += wanted[i].shape.num_elements() - Intersect(held[i], wanted[i]).shape.num_elements();
  }
  return moved;
}

MeshTransfer PlanMeshTransfer(const DeviceMesh& from_mesh, const Layout& from, const DeviceMesh& to_mesh,
                              const Layout& to, const Shape& shape) {
  CheckEnd(from, from_mesh, shape);
  CheckEnd(to, to_mesh, shape);
  MeshTransfer transfer;
  transfer.ranks = from_mesh.ranks();
  transfer.ranks.insert(transfer.ranks.end(), to_mesh.ranks().begin(), to_mesh.ranks().end());
  std::sort(transfer.ranks.begin(), transfer.ranks.end());
  transfer.ranks.erase(std::unique(transfer.ranks.begin(), transfer.ranks.end()), transfer.ranks.end());
  for (int rank : transfer.ranks) {
    transfer.held.push_back(RegionOf(rank, from, from_mesh, shape));
    transfer.wanted.push_back(RegionOf(rank, to, to_mesh, shape));
  }
  return transfer;
}

Layout ReducedLayout(const Layout& layout, const Shape& shape, const DeviceMesh& mesh) {
  Layout reduced = layout;
  for (int axis : layout.PartialAxes()) {
    const Shape piece = LargestPiece(shape, reduced, mesh);
    int best = -1;
    for (int dim = 0; dim < shape.ndim(); ++dim) {
      if (piece[dim] >= mesh.axis_size(axis) && (best < 0 || piece[dim] > piece[best])) best = dim;
    }
    reduced = best >= 0 ? reduced.WithShard(axis, best) : reduced.WithReplicate(axis);
  }
  return reduced;
}

Layout WithoutPartial(Layout layout) {
  for (int axis : layout.PartialAxes()) layout = layout.WithReplicate(axis);
  return layout;
}

bool AddsUp(const Layout& layout) {
  const AxisList axes = layout.PartialAxes();
  return std::all_of(axes.begin(), axes.end(),
                     [&](int axis) { return layout.partial_op(axis) == ReduceOp::kSum; });
}

}  // namespace weft
