#include "mesh/redistribution_move.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

using Coordinate = std::array<int64_t, DeviceMesh::kMaxAxes>;

// The axes that split one dim, outermost first, those of one rank left out.
struct Nest {
  std::array<int8_t, DeviceMesh::kMaxAxes> axes;
  int size = 0;
};
using Nests = std::array<Nest, Layout::kMaxDims>;  // by dim

Nests NestsOf(const Layout& layout, const DeviceMesh& mesh) {
  Nests nests;
  for (Nest& nest : nests) nest.axes.fill(-1);
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout.IsShard(axis) && mesh.axis_size(axis) > 1) {
      nests[layout.shard_dim(axis)].axes[layout.shard_position(axis)] = static_cast<int8_t>(axis);
    }
  }
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    Nest& nest = nests[dim];
    for (int8_t axis : nest.axes) {
      if (axis >= 0) nest.axes[nest.size++] = axis;
    }
  }
  return nests;
}

// The part of `piece` at `coordinate`.
Range PieceAt(Range piece, const Nest& nest, const Coordinate& coordinate, const DeviceMesh& mesh) {
  for (int i = 0; i < nest.size; ++i) {
    piece = ChunkOf(piece, mesh.axis_size(nest.axes[i]), coordinate[nest.axes[i]]);
  }
  return piece;
}

int64_t Overlap(const Range& a, const Range& b) {
  return std::max<int64_t>(0, std::min(a.offset + a.size, b.offset + b.size) - std::max(a.offset, b.offset));
}

AxisMask MaskOf(const Nest& nest, int first = 0) {
  AxisMask mask = 0;
  for (int i = first; i < nest.size; ++i) mask |= 1u << nest.axes[i];
  return mask;
}

// One move, dim by dim. The axes that a dim's two nests begin with alike stay where they are; what follows
// them is cut anew.
class MoveMeter {
 public:
  MoveMeter(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh)
      : mesh_(mesh), ndim_(shape.ndim()), from_(NestsOf(from, mesh)), to_(NestsOf(to, mesh)) {
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
    int num_settled = 0;  // how many axes, outermost, are the same on both sides
    while (num_settled < std::min(from.size, to.size) && from.axes[num_settled] == to.axes[num_settled]) {
      extent = ChunkOf({0, extent}, mesh_.axis_size(from.axes[num_settled++]), 0).size;
    }
    change.held = MaskOf(from, num_settled);
    change.wanted = MaskOf(to, num_settled);
    const int64_t old_cuts = NumRanksAlong(change.held, mesh_);
    const int64_t new_cuts = NumRanksAlong(change.wanted, mesh_);
    const int64_t settled_cuts = NumRanksAlong(MaskOf(from) & ~change.held, mesh_);
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
      if (change.held != 0 || (change.wanted & held) != 0) tried |= MaskOf(from_[dim]) | MaskOf(to_[dim]);
    }
    const Coordinate coordinate = {};
    std::array<IndexList, DeviceMesh::kMaxAxes> indices;
    for (int axis : AxesIn(tried)) indices[axis] = TellingIndices(axis);
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

  using IndexList = absl::InlinedVector<int64_t, 8>;

  // Indices along `axis` that give pieces of every combination of sizes: chunks are full, then one is
  // shorter, then all are empty, so that each run of equal ones starts at one of these.
  IndexList TellingIndices(int axis) const {
    IndexList indices = {0};
    const int64_t size = mesh_.axis_size(axis);
    for (const Nests* nests : {&from_, &to_}) {
      for (int dim = 0; dim < ndim_; ++dim) {
        const Nest& nest = (*nests)[dim];
        IndexList extents = {dims_[dim].extent};  // that the piece may have, level by level
        for (int i = 0; i < nest.size; ++i) {
          const int64_t cuts = mesh_.axis_size(nest.axes[i]);
          IndexList inner;
          for (int64_t extent : extents) {
            if (extent == 0) continue;
            const int64_t chunk = (extent + cuts - 1) / cuts;
            if (nest.axes[i] == axis) {
              indices.push_back(std::min(extent / chunk, size - 1));
              indices.push_back(std::min(extent / chunk + 1, size - 1));
            }
            inner.push_back(chunk);
            if (extent % chunk != 0) inner.push_back(extent % chunk);
          }
          if (nest.axes[i] == axis) break;
          KeepDistinct(inner);
          extents = inner;
        }
      }
    }
    KeepDistinct(indices);
    return indices;
  }

  static void KeepDistinct(IndexList& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
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
  const int ndim_;
  const Nests from_;
  const Nests to_;
  std::array<DimChange, Layout::kMaxDims> dims_;
  bool all_even_ = true;
};

// Runs through all coordinates along `axes`, the others staying 0.
template <class Body>
void ForEachCoordinate(const AxisList& axes, const DeviceMesh& mesh, const Body& body) {
  Coordinate coordinate = {};
  for (bool more = true; more;) {
    body(coordinate);
    more = false;
    for (int axis : axes) {
      if (++coordinate[axis] < mesh.axis_size(axis)) {
        more = true;
        break;
      }
      coordinate[axis] = 0;
    }
  }
}

int64_t IndexAlong(const AxisList& axes, const Coordinate& coordinate, const DeviceMesh& mesh) {
  int64_t index = 0;
  for (int axis : axes) index = index * mesh.axis_size(axis) + coordinate[axis];
  return index;
}

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

// A rank keeps a box: a product over dims. So the sum over ranks splits by dims, but for the axes that more
// than one dim has a part of: each dim is first summed over the axes that it alone has.
int64_t NumKept(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh) {
  const Nests before = NestsOf(from, mesh);
  const Nests after = NestsOf(to, mesh);
  std::array<AxisMask, Layout::kMaxDims> own = {};
  AxisMask any = 0, shared = 0;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    own[dim] = MaskOf(before[dim]) | MaskOf(after[dim]);
    shared |= any & own[dim];
    any |= own[dim];
  }
  std::array<std::vector<int64_t>, Layout::kMaxDims> sums;  // by index along the dim's shared axes
  std::array<AxisList, Layout::kMaxDims> shared_axes;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    shared_axes[dim] = AxesIn(own[dim] & shared);
    sums[dim].resize(NumRanksAlong(own[dim] & shared, mesh));
    ForEachCoordinate(AxesIn(own[dim]), mesh, [&](const Coordinate& coordinate) {
      const Range whole = {0, shape[dim]};
      sums[dim][IndexAlong(shared_axes[dim], coordinate, mesh)] += Overlap(
          PieceAt(whole, before[dim], coordinate, mesh), PieceAt(whole, after[dim], coordinate, mesh));
    });
  }
  int64_t kept = 0;
  ForEachCoordinate(AxesIn(shared), mesh, [&](const Coordinate& coordinate) {
    int64_t product = 1;
    for (int dim = 0; dim < shape.ndim(); ++dim) {
      product *= sums[dim][IndexAlong(shared_axes[dim], coordinate, mesh)];
    }
    kept += product;
  });
  return kept * (mesh.num_ranks() / NumRanksAlong(any, mesh));
}

}  // namespace weft
