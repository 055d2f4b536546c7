#include "mesh/view_algebra.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "mesh/shard_math.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Row-major strides that tell dims apart even if there are no elements.
Shape StridesOf(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(shape[dim], 1);
  }
  return strides;
}

// One run of a box: `extent` steps of `stride`.
using Runs = absl::InlinedVector<std::pair<int64_t, int64_t>, Shape::kMaxDims>;

// A nonempty box as the shortest list of runs, innermost first: equal lists are equal sets of elements, since
// the strides of a row-major tensor nest.
Runs RunsOf(const Shape& extents, const Shape& strides) {
  Runs runs;
  for (int dim = extents.ndim() - 1; dim >= 0; --dim) {
    if (extents[dim] == 1) continue;
    if (!runs.empty() && runs.back().first * runs.back().second == strides[dim]) {
      runs.back().first *= extents[dim];
    } else {
      runs.push_back({extents[dim], strides[dim]});
    }
  }
  return runs;
}

// The same elements as a box of either shape; where they begin does not matter for how they are cut.
struct Piece {
  Shape from;
  Shape to;

  bool operator==(const Piece&) const = default;
};
using Pieces = absl::InlinedVector<Piece, 4>;  // distinct; empty ones, which stay empty, are left out

// Places the axes of the layout of `from` on dims of `to`, one after another, outer ones of a dim first, so
// that the pieces agree after every step. The two sides agree in the end only if they do so in some such
// order: of two nested cuts of the same elements, the last axis that both have innermost can be taken away on
// both sides.
class Placer {
 public:
  Placer(const Shape& from, const Layout& layout, const Shape& to, const DeviceMesh& mesh)
      : from_(from), to_(to), from_strides_(StridesOf(from)), to_strides_(StridesOf(to)), mesh_(mesh) {
    for (int dim = 0; dim < from.ndim(); ++dim) waiting_.push_back(layout.ShardAxes(dim));
    for (const AxisList& axes : waiting_) num_waiting_ += axes.size();
  }

  std::optional<Layout> Run(const Layout& start) {
    // A scalar has no dim to split; over an axis of size 1 there is nothing to split either.
    if (to_.ndim() == 0) return MaxSplit() == 1 ? std::optional<Layout>(start) : std::nullopt;
    Pieces pieces;
    if (from_.num_elements() > 0) pieces.push_back({from_, to_});
    return Place(start, pieces);
  }

 private:
  int64_t MaxSplit() const {
    int64_t size = 1;
    for (const AxisList& axes : waiting_) {
      for (int axis : axes) size = std::max(size, mesh_.axis_size(axis));
    }
    return size;
  }

  std::optional<Layout> Place(const Layout& placed, const Pieces& pieces) {
    if (num_waiting_ == 0) return placed;
    if (!tried_.insert(placed).second) return std::nullopt;
    for (int dim = 0; dim < from_.ndim(); ++dim) {
      if (waiting_[dim].empty()) continue;
      const int axis = waiting_[dim].front();
      waiting_[dim].erase(waiting_[dim].begin());
      --num_waiting_;
      std::optional<Layout> result = PlaceAxis(axis, dim, placed, pieces);
      if (result.has_value()) return result;
      waiting_[dim].insert(waiting_[dim].begin(), axis);
      ++num_waiting_;
      // An axis of size 1 fits anywhere, so it is not what failed.
      if (mesh_.axis_size(axis) == 1) return std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<Layout> PlaceAxis(int axis, int dim, const Layout& placed, const Pieces& pieces) {
    for (int to_dim : ByLikeness(dim)) {
      const std::optional<Pieces> cut = Cut(pieces, mesh_.axis_size(axis), dim, to_dim);
      if (!cut.has_value()) continue;
      std::optional<Layout> result = Place(placed.WithShard(axis, to_dim), *cut);
      if (result.has_value() || mesh_.axis_size(axis) == 1) return result;
    }
    return std::nullopt;
  }

  // The dims of `to`: first that which is dim `dim` of `from`, then one that is cut from it or merged from it
  // and is its outermost part, then the rest.
  absl::InlinedVector<int, Shape::kMaxDims> ByLikeness(int dim) const {
    const auto end = [](const Shape& shape, const Shape& strides, int d) {
      return strides[d] * std::max<int64_t>(shape[d], 1);
    };
    const auto unlikeness = [&](int d) {
      if (to_[d] == from_[dim] && to_strides_[d] == from_strides_[dim]) return 0;
      const bool same_end = end(to_, to_strides_, d) == end(from_, from_strides_, dim);
      return same_end && (to_[d] > 1) == (from_[dim] > 1) ? 1 : 2;
    };
    absl::InlinedVector<int, Shape::kMaxDims> dims;
    for (int d = 0; d < to_.ndim(); ++d) dims.push_back(d);
    absl::c_stable_sort(dims, [&](int a, int b) { return unlikeness(a) < unlikeness(b); });
    return dims;
  }

  // The pieces after `size` chunks of `dim` on one side and of `to_dim` on the other; none if they differ.
  std::optional<Pieces> Cut(const Pieces& pieces, int64_t size, int dim, int to_dim) const {
    Pieces cut;
    for (const Piece& piece : pieces) {
      Piece last;
      for (int64_t index = 0; index < size; ++index) {
        const Range range = ChunkOf({0, piece.from[dim]}, size, index);
        const Range to_range = ChunkOf({0, piece.to[to_dim]}, size, index);
        if ((range.size == 0) != (to_range.size == 0)) return std::nullopt;
        if (range.size == 0) break;  // and so are all that follow
        if (range.offset * from_strides_[dim] != to_range.offset * to_strides_[to_dim]) return std::nullopt;
        Piece next = piece;
        next.from[dim] = range.size;
        next.to[to_dim] = to_range.size;
        if (next == last) continue;
        if (RunsOf(next.from, from_strides_) != RunsOf(next.to, to_strides_)) return std::nullopt;
        if (!absl::c_linear_search(cut, next)) cut.push_back(next);
        last = next;
      }
    }
    return cut;
  }

  const Shape& from_;
  const Shape& to_;
  const Shape from_strides_;
  const Shape to_strides_;
  const DeviceMesh& mesh_;
  absl::InlinedVector<AxisList, Shape::kMaxDims> waiting_;  // per dim of `from`, outermost first
  size_t num_waiting_ = 0;
  absl::flat_hash_set<Layout> tried_;
};

// The ends of groups of neighbouring dims with equal products, as short as can be.
struct DimGroup {
  int from_end = 0;
  int to_end = 0;
};

std::vector<DimGroup> MatchDims(const Shape& from, const Shape& to) {
  if (from.num_elements() == 0) return {{from.ndim(), to.ndim()}};
  std::vector<DimGroup> groups;
  int i = 0;
  int j = 0;
  while (i < from.ndim() || j < to.ndim()) {
    if (i < from.ndim() && j < to.ndim() && from[i] == to[j]) {
      groups.push_back({++i, ++j});
      continue;
    }
    int64_t left = 1;
    int64_t right = 1;
    do {
      if (i < from.ndim() && (left <= right || j == to.ndim())) {
        left *= from[i++];
      } else {
        right *= to[j++];
      }
    } while (left != right);
    groups.push_back({i, j});
  }
  return groups;
}

}  // namespace

std::optional<Layout> ViewLayout(const Shape& from, const Layout& layout, const Shape& to,
                                 const DeviceMesh& mesh) {
  WEFT_REQUIRE(layout.ndim() == from.ndim() && layout.num_axes() == mesh.num_axes(), "layout ",
               layout.ToString(), " is not one of a tensor of shape ", from.ToString(), " on mesh (",
               mesh.ToString(), ")");
  WEFT_REQUIRE(from.num_elements() == to.num_elements(), "shape ", from.ToString(), " has ",
               from.num_elements(), " elements, so it cannot be seen as ", to.ToString());
  if (from == to) return layout;
  Layout start(to.ndim(), mesh.num_axes());
  for (int axis : layout.PartialAxes()) start = start.WithPartial(axis, layout.partial_op(axis));
  return Placer(from, layout, to, mesh).Run(start);
}

Shape UnmergedShape(const Shape& from, const Layout& layout, const Shape& to, const DeviceMesh& mesh) {
  using Dims = absl::InlinedVector<int64_t, 2 * Shape::kMaxDims>;
  const auto dims_of = [](const Shape& shape, int begin, int end, const Dims& rest) {
    Dims dims(shape.begin() + begin, shape.begin() + end);
    dims.insert(dims.end(), rest.begin(), rest.end());
    return dims;
  };
  // From the right: the groups before the one under test are still as in `from`.
  Dims done;
  const std::vector<DimGroup> groups = MatchDims(from, to);
  for (size_t g = groups.size(); g-- > 0;) {
    const DimGroup begin = g == 0 ? DimGroup{} : groups[g - 1];
    const Dims seen = dims_of(to, begin.to_end, groups[g].to_end, done);
    const Dims candidate = dims_of(from, 0, begin.from_end, seen);
    const bool fits = candidate.size() <= Shape::kMaxDims;
    const bool legal = fits && ViewLayout(from, layout, Shape(absl::MakeConstSpan(candidate)), mesh);
    done = legal ? seen : dims_of(from, begin.from_end, groups[g].from_end, done);
  }
  return Shape(absl::MakeConstSpan(done));
}

}  // namespace weft
