#ifndef WEFT_MESH_REDISTRIBUTION_REGION_H_
#define WEFT_MESH_REDISTRIBUTION_REGION_H_

#include <ostream>
#include <vector>

#include "absl/types/span.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A box of elements: a piece of a tensor, or of a piece.
struct Region {
  Shape offset;
  Shape shape;

  bool empty() const { return shape.num_elements() == 0; }
  bool operator==(const Region&) const = default;

  // The same box, seen from `origin`.
  Region From(const Shape& origin) const;
};

// What two regions of one tensor share; empty (extents 0) if nothing.
Region Intersect(const Region& a, const Region& b);

// True if the elements of `pieces`, one piece after another, are the row-major elements of a tensor of shape
// `whole` in order, each of them once. Empty pieces do not matter.
bool LieInOrder(const Shape& whole, absl::Span<const Region> pieces);

// What one member of a group exchanges with others so that each gets what it lacks.
struct RegionMessage {
  int peer = 0;  // another member
  Region region;

  bool operator==(const RegionMessage&) const = default;
};
struct RegionExchange {
  Region kept;  // held before and wanted after
  std::vector<RegionMessage> sends;
  std::vector<RegionMessage> receives;

  bool operator==(const RegionExchange&) const = default;
};

// Member `member`'s part in an exchange in which member i holds `held[i]` and wants `wanted[i]`. Members hold
// equal regions (replicas) or disjoint ones, and together all that is wanted. A member that wants part of a
// region that it does not hold gets it from the holders in turn, in the order of the members, so that
// replicas share the work. At most one message from a member to another; every member plans alike.
//
// Cost: members, for each region that this one wants part of and several hold.
RegionExchange PlanRegionExchange(absl::Span<const Region> held, absl::Span<const Region> wanted, int member);

std::ostream& operator<<(std::ostream& out, const Region& region);  // "[2, 3] at [0, 3]"

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_REGION_H_
