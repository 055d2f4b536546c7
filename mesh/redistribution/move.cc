#include "mesh/redistribution/move.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "mesh/redistribution/shard_nests.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

// One move, dim by dim. The axes that a dim's two nests begin with alike stay where they are; what follows
// them is cut anew.
class MoveMeter {
 public:
  MoveMeter(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh)
      : mesh_(mesh), shape_(shape), ndim_(shape.ndim()), from_(NestsOf(from, mesh)), to_(NestsOf(to, mesh)) {
    for (int dim = 0; dim < ndim_; ++dim) dims_[dim] = Compare(dim, shape[dim]);
  }

  Move Describe() const {
    Move move;
    AxisMask held = 0, wanted = 0;  // axes that split something, of those that change
    bool is_gather = true;
    int64_t piece = 1, kept = 1, messages = 1;  // of the worst rank, were all pieces even
    for (int dim = 0; dim < ndim_; ++dim) {
      const DimChange& change = dims_[dim];
      held |= change.held;
      wanted |= change.wanted;
      if (change.held != 0) move.axes |= change.held | change.wanted;
      if (change.held != 0 && change.wanted != 0) is_gather = false;
      piece *= change.largest;
      // Where a dim is cut anew, some rank's new piece lies wholly outside its old one.
      kept *= change.held == 0 ? change.largest : change.wanted == 0 ? change.smallest_held : 0;
      messages *= change.messages;
    }
    move.lacked = all_even_ ? piece - kept : MostLacked(held, piece);
    move.messages = held == 0 ? 0 : messages - (kept > 0 ? 1 : 0);
    move.kind = KindOf(move, held, wanted, is_gather);
    return move;
  }

 private:
  struct DimChange {
    int64_t extent = 0;
    AxisMask held = 0;          // the axes that split the dim before, inside those that stay
    AxisMask wanted = 0;        // and after
    int64_t largest = 0;        // new piece
    int64_t smallest_held = 0;  // old piece, where all pieces are even
    int64_t messages = 1;       // old pieces that a new one touches
    bool same_cuts = true;      // the old and new pieces are the same intervals
  };

  DimChange Compare(int dim, int64_t extent) {
    const Nest& from = from_[dim];
    const Nest& to = to_[dim];
    DimChange change;
    change.extent = extent;
    const int num_settled = NumSettled(from, to);
    for (int i = 0; i < num_settled; ++i)
      extent = ChunkOf({0, extent}, mesh_.axis_size(from.axes[i]), 0).size;
    change.held = NestMask(from, num_settled);
    change.wanted = NestMask(to, num_settled);
    const int64_t old_cuts = NumRanksAlong(change.held, mesh_);
    const int64_t new_cuts = NumRanksAlong(change.wanted, mesh_);
    const int64_t settled_cuts = NumRanksAlong(NestMask(from) & ~change.held, mesh_);
    const bool even =
        change.extent % (settled_cuts * old_cuts) == 0 && change.extent % (settled_cuts * new_cuts) == 0;
    all_even_ &= even;
    change.largest = ChunkOf({0, extent}, new_cuts, 0).size;
    change.smallest_held = extent / old_cuts;
    change.messages = old_cuts % new_cuts == 0   ? old_cuts / new_cuts
                      : new_cuts % old_cuts == 0 ? 1
                                                 : std::min(old_cuts, old_cuts / new_cuts + 2);
    change.same_cuts = from.size == to.size && old_cuts == new_cuts;
    for (int i = num_settled; change.same_cuts && !even && i < from.size; ++i) {
      change.same_cuts = mesh_.axis_size(from.axes[i]) == mesh_.axis_size(to.axes[i]);
    }
    return change;
  }

  StepKind KindOf(const Move& move, AxisMask held, AxisMask wanted, bool is_gather) const {
    if (held == 0) return StepKind::kSlice;
    if (is_gather && (held & wanted) == 0) return StepKind::kAllGather;
    if (held != wanted) return StepKind::kSendRegions;
    if (std::all_of(dims_.begin(), dims_.begin() + ndim_, [](const DimChange& d) { return d.same_cuts; })) {
      return StepKind::kPermute;
    }
    return move.messages + 1 >= NumRanksAlong(held, mesh_) ? StepKind::kAllToAll : StepKind::kSendRegions;
  }

  // Dims of which every rank keeps its whole new piece only scale what it lacks, so that their axes stand at
  // their first index. Along the others, indices are tried until one lacks as much as any could.
  int64_t MostLacked(AxisMask held, int64_t bound) const {
    if (held == 0 || bound == 0) return 0;
    AxisMask tried = 0;
    bool cuts_anew = false;
    for (int dim = 0; dim < ndim_; ++dim) {
      const DimChange& change = dims_[dim];
      cuts_anew |= change.held != 0 && change.wanted != 0;
      if (change.held != 0 || (change.wanted & held) != 0) tried |= NestMask(from_[dim]) | NestMask(to_[dim]);
    }
    const Coordinate coordinate = {};
    std::array<IndexList, DeviceMesh::kMaxAxes> indices;
    for (int axis : AxesIn(tried)) indices[axis] = TellingIndices(from_, to_, shape_, axis, mesh_);
    const int64_t most = MostLackedAmong(coordinate, AxesIn(tried), indices, bound);
    if (most == bound || !cuts_anew) return most;
    // Where a dim is cut anew, places count and not only sizes.
    if (NumRanksAlong(tried, mesh_) > kMaxTried) return bound;
    for (int axis : AxesIn(tried)) {
      indices[axis].resize(mesh_.axis_size(axis));
      std::iota(indices[axis].begin(), indices[axis].end(), 0);
    }
    return MostLackedAmong(coordinate, AxesIn(tried), indices, bound);
  }

  int64_t MostLackedAmong(Coordinate coordinate, const AxisList& axes,
                          const std::array<IndexList, DeviceMesh::kMaxAxes>& indices, int64_t bound) const {
    std::array<size_t, DeviceMesh::kMaxAxes> place = {};
    int64_t most = 0;
    for (bool more = true; more && most < bound;) {
      for (int axis : axes) coordinate[axis] = indices[axis][place[axis]];
      most = std::max(most, LackedAt(coordinate));
      more = false;
      for (int axis : axes) {
        if (++place[axis] < indices[axis].size()) {
          more = true;
          break;
        }
        place[axis] = 0;
      }
    }
    return most;
  }

  int64_t LackedAt(const Coordinate& coordinate) const {
    int64_t piece = 1, kept = 1;
    for (int dim = 0; dim < ndim_; ++dim) {
      const Range whole = {0, dims_[dim].extent};
      const Range before = PieceAt(whole, from_[dim], coordinate, mesh_);
      const Range after = PieceAt(whole, to_[dim], coordinate, mesh_);
      piece *= after.size;
      kept *= Overlap(before, after);
    }
    return piece - kept;
  }

  static constexpr int64_t kMaxTried = 1024;

  const DeviceMesh& mesh_;
  const Shape& shape_;
  const int ndim_;
  const Nests from_;
  const Nests to_;
  std::array<DimChange, Layout::kMaxDims> dims_;
  bool all_even_ = true;
};

}  // namespace

AxisList AxesIn(AxisMask mask) {
  AxisList axes;
  for (int axis = 0; mask >> axis != 0; ++axis) {
    if (mask >> axis & 1) axes.push_back(axis);
  }
  return axes;
}

AxisMask MaskOf(const AxisList& axes) {
  AxisMask mask = 0;
  for (int axis : axes) mask |= 1u << axis;
  return mask;
}

int64_t NumRanksAlong(AxisMask mask, const DeviceMesh& mesh) {
  int64_t count = 1;
  for (int axis = 0; mask >> axis != 0; ++axis) {
    if (mask >> axis & 1) count *= mesh.axis_size(axis);
  }
  return count;
}

AxisMask ChangedAxes(const Layout& from, const Layout& to, const DeviceMesh& mesh) {
  AxisMask changed = 0;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (from.placement(axis) != to.placement(axis)) changed |= 1u << axis;
  }
  return changed;
}

Move DescribeMove(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh) {
  return MoveMeter(from, to, shape, mesh).Describe();
}

}  // namespace weft
