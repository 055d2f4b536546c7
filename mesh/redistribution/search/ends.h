#ifndef WEFT_MESH_REDISTRIBUTION_SEARCH_ENDS_H_
#define WEFT_MESH_REDISTRIBUTION_SEARCH_ENDS_H_

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/redistribution/move.h"

namespace weft {

// Where a redistribution begins and ends, without the axes of one rank, which mean nothing to where things
// lie; and what the end says about layouts on the way. Borrows the mesh.
class RedistributionEnds {
 public:
  RedistributionEnds(const Layout& from, const Layout& to, const DeviceMesh& mesh);

  const Layout& from() const { return from_; }
  const Layout& to() const { return to_; }

  // The dims that either end splits, as bits.
  uint32_t NamedDims() const;
  // The Partial axes of `layout` that must be reduced.
  AxisMask Pending(const Layout& layout) const;
  // Whether `axis` ends on `dim`.
  bool EndsOn(int axis, int dim) const { return to_.IsShard(axis) && to_.shard_dim(axis) == dim; }
  // How many of the axes that split `dim`, outermost first, are in their final place.
  size_t NumSettled(const AxisList& now, int dim) const;
  // `layout`, split over every replicated axis whose final place is free: costs nothing.
  Layout SlicedAsFarAsPossible(Layout layout) const;
  // `layout` with the same axes on `dim`, those that end there outermost and as they end.
  Layout InFinalOrder(const Layout& layout, int dim) const;
  // The end, with what has yet to become Partial still replicated.
  Layout EndBeforePartials(const Layout& layout) const;

 private:
  Layout WithoutSingleRanks(Layout layout) const;

  const DeviceMesh& mesh_;
  const Layout from_;
  const Layout to_;
};

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_SEARCH_ENDS_H_
