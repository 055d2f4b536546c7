// The planner against an optimum found by brute force: the shortest path over all layouts, with bytes counted
// element by element on every rank.

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "mesh/redistribution/bound.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/move.h"
#include "mesh/redistribution/planner.h"
#include "tests/mesh/all_layouts.h"

namespace weft {
namespace {

// The indices of one dim that a rank holds, a bit each; extents up to 64.
using IndexSet = uint64_t;
// What a rank holds: an index set a dim.
using Piece = std::vector<IndexSet>;

int64_t Count(const Piece& piece) {
  int64_t count = 1;
  for (IndexSet indices : piece) count *= std::popcount(indices);
  return count;
}

int64_t CountBoth(Piece a, const Piece& b) {
  for (size_t dim = 0; dim < a.size(); ++dim) a[dim] &= b[dim];
  return Count(a);
}

// Chunk `index` of `count`: the first ceil(size / count) indices, then as many again, ...
IndexSet Chunk(IndexSet indices, int64_t count, int64_t index) {
  int64_t chunk = 0;
  while (chunk * count < std::popcount(indices)) ++chunk;
  IndexSet result = 0;
  int64_t place = 0;
  for (int i = 0; i < 64; ++i) {
    if ((indices >> i & 1) == 0) continue;
    if (place++ / std::max<int64_t>(chunk, 1) == index) result |= IndexSet{1} << i;
  }
  return result;
}

std::vector<Piece> PiecesOf(const Layout& layout, const Shape& shape, const DeviceMesh& mesh) {
  std::vector<Piece> pieces;
  for (int rank : mesh.ranks()) {
    const std::vector<int64_t> coordinate = mesh.CoordinateOf(rank);
    Piece piece;
    for (int dim = 0; dim < shape.ndim(); ++dim) {
      IndexSet indices = shape[dim] == 64 ? ~IndexSet{0} : (IndexSet{1} << shape[dim]) - 1;
      for (int axis : layout.ShardAxes(dim)) indices = Chunk(indices, mesh.axis_size(axis), coordinate[axis]);
      piece.push_back(indices);
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

constexpr int64_t kNever = INT64_MAX / 4;

// All layouts of one tensor over one mesh, and the least bytes that the worst rank receives between any two:
// each step counted at its own worst rank.
class Lattice {
 public:
  Lattice(const DeviceMesh& mesh, const Shape& shape, const std::vector<ReduceOp>& ops)
      : mesh_(mesh), layouts_(AllLayouts(shape.ndim(), mesh.num_axes(), ops)) {
    for (const Layout& layout : layouts_) pieces_.push_back(PiecesOf(layout, shape, mesh));
    for (size_t i = 0; i < layouts_.size(); ++i) {
      bytes_.emplace_back(layouts_.size());
      for (size_t j = 0; j < layouts_.size(); ++j) bytes_[i][j] = StepBytes(i, j);
    }
  }

  const std::vector<Layout>& layouts() const { return layouts_; }

  // By layout: the least bytes from layout `source`.
  std::vector<int64_t> Least(size_t source) const { return Shortest(source, bytes_, kNever); }

  // By layout: the least predicted time for a tensor of another shape, whatever it moves.
  std::vector<double> LeastMicroseconds(size_t source, const Shape& shape, const CostModel& cost_model) {
    if (microseconds_.empty()) {
      for (size_t i = 0; i < layouts_.size(); ++i) {
        microseconds_.emplace_back(layouts_.size(), 1e30);
        for (size_t j = 0; j < layouts_.size(); ++j) {
          if (bytes_[i][j] == kNever) continue;
          microseconds_[i][j] =
              cost_model.StepMicroseconds(StepBetween(i, j, shape), layouts_[i], {DType::kF32, shape});
        }
      }
    }
    return Shortest(source, microseconds_, 1e30);
  }

 private:
  // Dijkstra.
  template <class T>
  std::vector<T> Shortest(size_t source, const std::vector<std::vector<T>>& lengths, T never) const {
    std::vector<T> least(layouts_.size(), never);
    std::vector<bool> done(layouts_.size());
    least[source] = 0;
    for (size_t round = 0; round < layouts_.size(); ++round) {
      size_t next = layouts_.size();
      for (size_t i = 0; i < layouts_.size(); ++i) {
        if (!done[i] && (next == layouts_.size() || least[i] < least[next])) next = i;
      }
      done[next] = true;
      for (size_t i = 0; i < layouts_.size(); ++i) {
        least[i] = std::min(least[i], least[next] + lengths[next][i]);
      }
    }
    return least;
  }

  RedistributionStep StepBetween(size_t i, size_t j, const Shape& shape) const {
    RedistributionStep step{.kind = StepKind::kToPartial, .result = layouts_[j]};
    AxisMask axes = 0;
    bool is_scatter = false, enters = false;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      enters |= layouts_[j].IsPartial(axis) && !layouts_[i].IsPartial(axis);
      if (!layouts_[i].IsPartial(axis) || layouts_[j].IsPartial(axis)) continue;
      axes |= 1u << axis;
      is_scatter = layouts_[j].IsShard(axis);
    }
    if (axes != 0) step.kind = is_scatter ? StepKind::kReduceScatter : StepKind::kAllReduce;
    if (axes == 0 && !enters) {
      const Move move = DescribeMove(layouts_[i], layouts_[j], shape, mesh_);
      step.kind = move.kind;
      axes = move.axes;
    }
    step.axes = AxesIn(axes);
    return step;
  }

  // What the worst rank receives in the one step from layout i to layout j, or kNever if there is none: a
  // move of anything anywhere, a reduce-scatter or all-reduce over any Partial axes, or an entry into
  // Partial.
  int64_t StepBytes(size_t i, size_t j) const {
    const Layout& from = layouts_[i];
    const Layout& to = layouts_[j];
    std::vector<int> reduced, entered;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      if (from.IsPartial(axis) && !to.IsPartial(axis)) reduced.push_back(axis);
      if (!from.IsPartial(axis) && to.IsPartial(axis)) entered.push_back(axis);
      if (from.IsPartial(axis) && to.IsPartial(axis) && from.partial_op(axis) != to.partial_op(axis)) {
        return kNever;
      }
    }
    int64_t worst = 0;
    if (reduced.empty() && entered.empty()) {
      for (size_t rank = 0; rank < pieces_[i].size(); ++rank) {
        worst = std::max(worst, Count(pieces_[j][rank]) - CountBoth(pieces_[i][rank], pieces_[j][rank]));
      }
      return worst;
    }
    if (!reduced.empty() && !entered.empty()) return kNever;
    // Only the axes that are reduced or entered may change, and shards nest inside what is there.
    size_t num_scattered = 0;
    for (int dim = 0; dim < from.ndim(); ++dim) {
      const AxisList before = from.ShardAxes(dim), after = to.ShardAxes(dim);
      if (after.size() < before.size() || !std::equal(before.begin(), before.end(), after.begin())) {
        return kNever;
      }
      num_scattered += after.size() - before.size();
    }
    if (!entered.empty()) return num_scattered == 0 ? 0 : kNever;
    for (int axis : reduced) {
      if (from.partial_op(axis) != from.partial_op(reduced[0])) return kNever;
    }
    int64_t n = 1;
    for (int axis : reduced) n *= mesh_.axis_size(axis);
    for (const Piece& piece : pieces_[j]) {
      const int64_t elements = Count(piece);
      const int64_t share = (elements + n - 1) / n;
      worst = std::max(worst, num_scattered == 0 ? (n - 1) * share + elements - share : (n - 1) * elements);
    }
    const bool all_or_none = num_scattered == 0 || num_scattered == reduced.size();
    for (int axis : reduced) {
      if (num_scattered > 0 && !to.IsShard(axis)) return kNever;
    }
    return all_or_none ? worst : kNever;
  }

  const DeviceMesh& mesh_;
  const std::vector<Layout> layouts_;
  std::vector<std::vector<Piece>> pieces_;  // by layout and rank
  std::vector<std::vector<int64_t>> bytes_;
  std::vector<std::vector<double>> microseconds_;
};

// Whether it moves values as they are: all that communicate but reduce-scatter and all-reduce.
bool IsMove(StepKind kind) {
  return Communicates(kind) && kind != StepKind::kReduceScatter && kind != StepKind::kAllReduce;
}

// The most that one rank receives in the whole plan: what the sum over steps of their worst ranks stands for.
int64_t WorstRankOf(const Redistribution& plan, const Shape& shape, const DeviceMesh& mesh) {
  std::vector<int64_t> bytes(mesh.num_ranks());
  Layout from = plan.from;
  for (const RedistributionStep& step : plan.steps) {
    const std::vector<Piece> before = PiecesOf(from, shape, mesh), after = PiecesOf(step.result, shape, mesh);
    int64_t n = 1;
    for (int axis : step.axes) n *= mesh.axis_size(axis);
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      const int64_t elements = Count(after[rank]);
      if (step.kind == StepKind::kReduceScatter) bytes[rank] += (n - 1) * elements;
      if (step.kind == StepKind::kAllReduce) bytes[rank] += elements + (n - 2) * ((elements + n - 1) / n);
      if (IsMove(step.kind)) bytes[rank] += elements - CountBoth(before[rank], after[rank]);
    }
    from = step.result;
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

void ExpectOptimal(const DeviceMesh& mesh, const Shape& shape) {
  const Lattice lattice(mesh, shape, {ReduceOp::kSum});
  const CostModel cost_model(mesh);
  bool even = true;
  for (int64_t extent : shape) even &= extent % mesh.num_ranks() == 0;
  for (size_t i = 0; i < lattice.layouts().size(); ++i) {
    const std::vector<int64_t> least = lattice.Least(i);
    for (size_t j = 0; j < lattice.layouts().size(); ++j) {
      const Layout &from = lattice.layouts()[i], &to = lattice.layouts()[j];
      const Redistribution plan = PlanRedistribution(from, to, {DType::kU8, shape}, mesh, cost_model,
                                                     {.objective = PlanObjective::kBytes});
      EXPECT_EQ(WorstRankBytes(plan, {DType::kU8, shape}, mesh), least[j])
          << mesh << " " << shape << " " << plan.ToString(mesh) << " to " << to.ToString(mesh);
      EXPECT_LE(RedistributionBound(from, to, {DType::kU8, shape}, mesh), least[j]) << plan.ToString(mesh);
      if (even) {
        EXPECT_EQ(WorstRankOf(plan, shape, mesh), least[j]) << plan.ToString(mesh);
      }
    }
  }
}

TEST(RedistributionOptimumTest, BytesOfEveryPairOfEvenShards) {
  for (const DeviceMesh& mesh : AllMeshes(3, 8)) {
    const int64_t n = mesh.num_ranks();
    ExpectOptimal(mesh, {n, n, n});
  }
}

TEST(RedistributionOptimumTest, BytesOfEveryPairOfUnevenShards) {
  for (const DeviceMesh& mesh : AllMeshes(3, 8)) ExpectOptimal(mesh, {5, 3, 2});
}

// Of 64 MiB, where axes cost the same: the plan is as fast as any path through the lattice, on three axes
// nearly so. (Small tensors may have faster paths, of more bytes than the greedy plan's.)
TEST(RedistributionOptimumTest, TimeOfLargeTensors) {
  const Shape shape = {4096, 4096};
  for (const auto& [text, slack] : std::vector<std::pair<std::string, double>>{
           {"a=4", 1}, {"a=8", 1}, {"a=2,b=2", 1}, {"a=2,b=4", 1}, {"a=4,b=4", 1}, {"a=2,b=2,c=2", 1.05}}) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    const CostModel cost_model(mesh);
    Lattice lattice(mesh, {mesh.num_ranks(), mesh.num_ranks()}, {ReduceOp::kSum});
    for (size_t i = 0; i < lattice.layouts().size(); ++i) {
      const std::vector<double> least = lattice.LeastMicroseconds(i, shape, cost_model);
      for (size_t j = 0; j < lattice.layouts().size(); ++j) {
        const Redistribution plan = PlanRedistribution(lattice.layouts()[i], lattice.layouts()[j],
                                                       {DType::kF32, shape}, mesh, cost_model);
        ASSERT_LE(cost_model.Microseconds(plan, {DType::kF32, shape}), least[j] * slack * (1 + 1e-9))
            << plan.ToString(mesh) << " to " << lattice.layouts()[j].ToString(mesh);
      }
    }
  }
}

}  // namespace
}  // namespace weft
