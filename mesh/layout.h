#ifndef WEFT_MESH_LAYOUT_H_
#define WEFT_MESH_LAYOUT_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mesh/device_mesh.h"
#include "mesh/placement.h"

namespace weft {

// Axis numbers of one mesh, in a meaningful order.
using AxisList = absl::InlinedVector<int, 4>;

// A placement along a named axis: how users write layouts.
struct AxisPlacement {
  std::string axis;
  Placement placement;

  bool operator==(const AxisPlacement&) const = default;
};

// How a whole tensor lies over a mesh: along each axis it is replicated, split over one tensor dim, or
// partial. Several axes may split one dim; they nest, outermost first, and that order is part of the layout
// (it need not be the mesh's axis order: FSDP over TP on one dim is [tp.dp, -]).
//
// A packed 16-byte value that holds axis numbers, not names: copied, compared and hashed as integers.
// Building from names and printing with names take the mesh.
//
// An axis of size 1 stays as it is written: Shard over it is legal and not the same layout as Replicate,
// though both hold the same elements; so a layout does not depend on the mesh's sizes.
//
// Partial kinds: one tensor has one kind; sum and avg may mix, of floating dtypes (CheckPartials, mesh/shard_math.h).
class Layout {
 public:
  static constexpr int kMaxDims = 8;

  constexpr Layout() = default;  // a scalar on the mesh of no axes

  // Replicated along every one of `num_axes` axes.
  // Errors: InvalidArgument beyond 8 of either.
  Layout(int ndim, int num_axes);

  // From placements in list order: where axes share a dim, the first listed is outermost. Axes not listed are
  // replicated. An alias (DeviceMesh::Flatten) places all its axes, in its order. Negative dims count from the end.
  // Errors: InvalidArgument for an unknown, fixed or repeated axis, a dim out of range, partial kinds that cannot
  //         mix.
  Layout(const DeviceMesh& mesh, int ndim, const std::vector<AxisPlacement>& placements);

  int ndim() const { return ndim_; }
  int num_axes() const { return num_axes_; }

  bool IsReplicate(int axis) const { return kind(axis) == kReplicate; }
  bool IsShard(int axis) const { return kind(axis) == kShard; }
  bool IsPartial(int axis) const { return kind(axis) == kPartial; }
  Placement placement(int axis) const;
  int shard_dim(int axis) const { return dim_of(axis); }         // needs IsShard; the dim it splits
  int shard_position(int axis) const { return order_of(axis); }  // needs IsShard; 0 is outermost
  ReduceOp partial_op(int axis) const { return static_cast<ReduceOp>(dim_of(axis)); }  // needs IsPartial

  // The axes that split `dim`, outermost first.
  AxisList ShardAxes(int dim) const;
  // The partial axes, ascending.
  AxisList PartialAxes() const;
  bool HasPartial() const {
    for (int axis = 0; axis < num_axes_; ++axis) {
      if (IsPartial(axis)) return true;
    }
    return false;
  }
  bool IsFullyReplicated() const {
    // Replicate is the zero byte, and so are the axes beyond num_axes().
    return axes_ == decltype(axes_){};
  }

  // Copies with one axis changed. WithShard adds the axis innermost on `dim`; an axis that was a shard
  // elsewhere leaves its dim first, and the inner ones close up. Negative dims count from the end.
  //
  // Errors: InvalidArgument for an axis or dim out of range, and for partial kinds that cannot mix.
  Layout WithReplicate(int axis) const;
  Layout WithShard(int axis, int dim) const;
  Layout WithPartial(int axis, ReduceOp op = ReduceOp::kSum) const;
  Layout With(int axis, const Placement& placement) const;
  // The same, but this layout as it is where it says so already: With would nest a shard's axis anew,
  // innermost, which moves data.
  Layout PlacedAlong(int axis, const Placement& placement) const;

  // Text form. With a mesh: "[dp, tp]", "[tp.dp, -]", "[-, -] P{tp}", "P{a,b:max}", "P{a:sum,b:avg}" (scalar,
  // partial); one entry per dim, "-" unsplit, axes joined by '.' outermost first; partial axes with their
  // kind, sum if unsaid, one kind after the last axis standing for all if no other is said. "[]" for a
  // replicated scalar. Without a mesh, and for axes that the mesh lacks, axes are a0, a1, ...
  std::string ToString(const DeviceMesh& mesh) const;
  std::string ToString() const;

  // The inverse of ToString(mesh), blanks free; an alias stands for its axes, joined by '.' or ','.
  // Errors: InvalidArgument with the text and what was expected at which place.
  static Layout Parse(absl::string_view text, const DeviceMesh& mesh);

  bool operator==(const Layout&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const Layout& layout) {
    return H::combine(std::move(state), layout.axes_, layout.ndim_, layout.num_axes_);
  }

 private:
  // One byte an axis: kind (2 bits), dim or reduction (3 bits), position within the dim (3 bits).
  enum Kind : uint8_t { kReplicate = 0, kShard = 1, kPartial = 2 };
  Kind kind(int axis) const { return static_cast<Kind>(axes_[axis] & 3u); }
  int dim_of(int axis) const { return (axes_[axis] >> 2) & 7; }
  int order_of(int axis) const { return axes_[axis] >> 5; }
  void Set(int axis, Kind kind, int dim, int order) {
    axes_[axis] = static_cast<uint8_t>(kind | (dim << 2) | (order << 5));
  }

  std::array<uint8_t, DeviceMesh::kMaxAxes> axes_ = {};
  uint8_t ndim_ = 0;
  uint8_t num_axes_ = 0;
  std::array<uint8_t, 6> unused_ = {};  // room for tile order or uneven sizes; keeps the value at 16 bytes
};

static_assert(sizeof(Layout) == 16);

std::ostream& operator<<(std::ostream& out, const Layout& layout);

}  // namespace weft

#endif  // WEFT_MESH_LAYOUT_H_
