#include "mesh/redistribution/search/search.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>
#include <vector>

#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/move.h"
#include "mesh/redistribution/search/builder.h"
#include "mesh/redistribution/search/ends.h"
#include "mesh/redistribution/search/nodes.h"
#include "mesh/shard_math.h"

namespace weft {
namespace {

constexpr size_t kMaxExpansions = 64;
constexpr size_t kMaxExpansionsForBytes = 256;      // of up to three axes; else as above
constexpr size_t kMaxExpansionsOfUnequalAxes = 16;  // beyond three: what is left is then hard to estimate
// Added for every step, so that of equal plans the one of fewer steps is found.
constexpr double kTieMicroseconds = 1e-6;

// What is minimised, then what decides between equals.
using Score = std::pair<double, double>;

class Search {
 public:
  Search(const PlanRequest& request, const DeviceMesh& mesh, const CostModel& cost_model);
  std::optional<Redistribution> Run();

 private:
  bool bytes_first() const { return request_.objective == PlanObjective::kBytes; }
  Score ScoreOf(int64_t bytes, double us) const {
    return bytes_first() ? Score{static_cast<double>(bytes), us} : Score{us, static_cast<double>(bytes)};
  }
  void Expand(int index);
  void AddMoves(int index);
  void AddReplacements(int index);
  void AddSlices(int index);
  void AddReductions(int index, AxisMask pending);
  void AddReduceScatter(int index, AxisMask axes, int dim, ReduceOp op);
  void AddReduceScatterTo(int index, AxisMask axes, const Layout& result, ReduceOp op);
  void AddAllReduce(int index, AxisMask axes, ReduceOp op);
  void AddMove(int index, const Layout& result);
  // Whether a way to `layout` is known that is no worse than one of these bytes and this time.
  bool IsBeaten(const Layout& layout, int64_t bytes, double us) const;
  // The layout after all slices that cost nothing.
  Layout LayoutAfter(const Layout& result) const;
  void Add(RedistributionNode node, const StepTraffic& traffic);
  // Notes the plan that goes from `node` straight to the end. Returns what is left at least.
  Score TryToFinish(const RedistributionNode& node, int index);
  Score LeastReduction(const Layout& layout, AxisMask pending) const;
  bool FitsMemory(const RedistributionNode& before, StepKind kind, const Layout& result) const;
  int64_t PieceBytes(const Layout& layout) const {
    return MaxLocalElements(request_.type.shape, layout, mesh_) * ItemSize(request_.type.dtype);
  }

  Redistribution Build() const;

  const PlanRequest& request_;
  const DeviceMesh& mesh_;
  const CostModel& cost_model_;
  const RedistributionEnds ends_;
  std::vector<int> dims_;  // that may be split
  AxisMask usable_ = 0;    // replicated axes that may split something on the way
  bool even_ = true;       // every dim divides by the number of ranks
  bool uniform_ = true;    // all axes cost the same
  bool is_small_ = true;   // few enough axes to look at every layout
  bool exhaustive_ = false;
  bool detours_ = false;  // look for ways around slow axes
  AxisCost cheapest_;
  RedistributionNodes nodes_;
  std::vector<std::pair<Score, int>> open_;  // a heap of (estimate, node)
  std::optional<Score> best_;
  int best_node_ = -1;
};

Search::Search(const PlanRequest& request, const DeviceMesh& mesh, const CostModel& cost_model)
    : request_(request), mesh_(mesh), cost_model_(cost_model), ends_(request.from, request.to, mesh) {
  // Axes of one rank, such as those that a slice fixes, have no part in anything.
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (mesh.axis_size(axis) == 1) continue;
    const AxisCost& cost = cost_model.axis(axis);
    const int first = usable_ == 0 ? axis : std::countr_zero(usable_);
    if (axis == first) cheapest_ = cost;
    uniform_ &= cost == cost_model.axis(first);
    cheapest_.alpha = std::min(cheapest_.alpha, cost.alpha);
    cheapest_.beta = std::min(cheapest_.beta, cost.beta);
    usable_ |= 1u << axis;
  }
  int widest = -1;  // of the dims that neither end names
  for (int dim = 0; dim < request.type.ndim(); ++dim) {
    const bool is_named = ends_.NamedDims() >> dim & 1;
    if (!is_named && (widest < 0 || request.type.shape[dim] > request.type.shape[widest])) widest = dim;
    even_ &= request.type.shape[dim] % mesh.num_ranks() == 0;
  }
  for (int dim = 0; dim < request.type.ndim(); ++dim) {
    if (bytes_first() || (ends_.NamedDims() >> dim & 1) || dim == widest) dims_.push_back(dim);
  }
  is_small_ = std::popcount(usable_) <= 3;
  exhaustive_ = bytes_first() && !even_ && is_small_;
  detours_ = !bytes_first() && !uniform_ && is_small_;
}

std::optional<Redistribution> Search::Run() {
  RedistributionNode root;
  root.result = root.buffer = ends_.from();
  Add(root, {});
  const size_t max_expansions = is_small_ && bytes_first() ? kMaxExpansionsForBytes
                                : uniform_ || is_small_    ? kMaxExpansions
                                                           : kMaxExpansionsOfUnequalAxes;
  for (size_t expanded = 0; !open_.empty() && expanded < max_expansions; ++expanded) {
    std::pop_heap(open_.begin(), open_.end(), std::greater<>());
    const auto [estimate, index] = open_.back();
    open_.pop_back();
    if (best_.has_value() && !(estimate < *best_)) break;
    Expand(index);
  }
  if (!best_.has_value()) return std::nullopt;
  return Build();
}

void Search::Expand(int index) {
  const AxisMask pending = ends_.Pending(nodes_[index].layout);
  if (pending != 0 || detours_) AddSlices(index);
  if (pending != 0) AddReductions(index, pending);
  if (!bytes_first()) AddMoves(index);
  if (exhaustive_ && pending != 0) AddReplacements(index);
}

// Gathers and all-to-alls of the innermost axes of one dim, as far in as they are not settled. In bytes none
// beats the move straight to the end, but a chain may take fewer messages. Where axes differ in cost, a
// detour may also spare the slow ones.
void Search::AddMoves(int index) {
  const Layout layout = nodes_[index].layout;
  const bool may_gather = ends_.Pending(layout) == 0;
  for (int dim : dims_) {
    const AxisList now = layout.ShardAxes(dim);
    const size_t settled = ends_.NumSettled(now, dim);
    if (detours_) AddMove(index, ends_.InFinalOrder(layout, dim));
    Layout gathered = layout;
    for (size_t i = now.size(); i-- > settled;) {
      gathered = gathered.WithReplicate(now[i]);
      if (may_gather) AddMove(index, gathered);
      for (int other : dims_) {
        const bool wanted_there = std::all_of(now.begin() + static_cast<std::ptrdiff_t>(i), now.end(),
                                              [&](int axis) { return ends_.EndsOn(axis, other); });
        if (other == dim || (!detours_ && !wanted_there)) continue;
        Layout moved = layout;
        for (size_t j = i; j < now.size(); ++j) moved = moved.WithShard(now[j], other);
        AddMove(index, moved);
      }
    }
  }
}

// Where pieces are uneven, other cuts of the same axes may be smaller, and a reduction of smaller pieces may
// save what the move costs: the innermost axes of any dim, put onto any dims in any order.
void Search::AddReplacements(int index) {
  const Layout layout = nodes_[index].layout;
  const auto place = [&](auto&& self, const Layout& placed, AxisMask left) -> void {
    if (left == 0) return AddMove(index, placed);
    for (int axis : AxesIn(left)) {
      for (int dim : dims_) self(self, placed.WithShard(axis, dim), left & ~(1u << axis));
    }
  };
  for (int dim : dims_) {
    const AxisList now = layout.ShardAxes(dim);
    Layout without = layout;
    AxisMask taken = 0;
    for (size_t i = now.size(); i-- > 0;) {
      without = without.WithReplicate(now[i]);
      taken |= 1u << now[i];
      place(place, without, taken);
    }
  }
}

// Before a reduction, ranks that hold the same terms share the work: those whose place is still taken, on the
// dim that they end on or on any one, and with them or alone those that end replicated. With kBytes, any axis
// may go anywhere.
void Search::AddSlices(int index) {
  const Layout layout = nodes_[index].layout;
  const auto add = [&](const Layout& sliced) {
    if (sliced == layout) return;
    RedistributionNode node{.result = sliced, .parent = index, .kind = StepKind::kSlice};
    node.axes = ChangedAxes(layout, sliced, mesh_);
    Add(node, {});
  };
  AxisMask replicated = 0;
  for (int axis : AxesIn(usable_)) replicated |= layout.IsReplicate(axis) ? 1u << axis : 0;
  if (bytes_first()) {
    for (int axis : AxesIn(replicated)) {
      for (int dim : dims_) add(layout.WithShard(axis, dim));
    }
    return;
  }
  Layout home = layout;
  for (int dim : dims_) {
    for (int axis : ends_.to().ShardAxes(dim)) {
      if (replicated >> axis & 1) home = home.WithShard(axis, dim);
    }
  }
  add(home);
  for (int dim : dims_) {
    Layout all = layout, others = home;
    for (int axis : AxesIn(replicated)) {
      all = all.WithShard(axis, dim);
      if (!ends_.to().IsShard(axis)) others = others.WithShard(axis, dim);
    }
    add(others);
    add(all);
  }
}

void Search::AddReductions(int index, AxisMask pending) {
  const Layout layout = nodes_[index].layout;
  const ReduceOp op = layout.partial_op(AxesIn(pending).front());
  AxisMask axes = 0, elsewhere = 0;  // of that kind; those of them that do not end as shards
  for (int axis : AxesIn(pending)) {
    if (layout.partial_op(axis) != op) continue;
    axes |= 1u << axis;
    if (!ends_.to().IsShard(axis)) elsewhere |= 1u << axis;
  }
  const auto wanted_on = [&](int dim) {
    AxisMask wanted = 0;
    for (int axis : AxesIn(axes)) {
      if (ends_.EndsOn(axis, dim)) wanted |= 1u << axis;
    }
    return wanted;
  };
  Layout home = layout;  // each wanted axis on its dim
  AxisMask homebound = 0;
  for (int dim : dims_) {
    const AxisMask wanted = wanted_on(dim);
    AddReduceScatter(index, axes, dim, op);
    if (wanted != 0 && wanted != axes) AddReduceScatter(index, wanted, dim, op);
    for (int axis : ends_.to().ShardAxes(dim)) {
      if (wanted >> axis & 1) home = home.WithShard(axis, dim);
    }
    homebound |= wanted;
    if ((bytes_first() || !uniform_) && NumRanksAlong(axes, mesh_) > 1) {
      for (int axis : AxesIn(axes)) AddReduceScatter(index, 1u << axis, dim, op);
    }
  }
  if (homebound != 0) AddReduceScatterTo(index, homebound, home, op);
  AddAllReduce(index, axes, op);
  if (elsewhere != 0 && elsewhere != axes) AddAllReduce(index, elsewhere, op);
  if (!uniform_) {
    for (int axis : AxesIn(axes)) AddAllReduce(index, 1u << axis, op);
  }
}

// On `dim`: the axes that end there in the order in which they do, then the others.
void Search::AddReduceScatter(int index, AxisMask axes, int dim, ReduceOp op) {
  Layout result = nodes_[index].layout;
  AxisMask rest = axes;
  for (int axis : ends_.to().ShardAxes(dim)) {
    if ((axes >> axis & 1) == 0) continue;
    result = result.WithShard(axis, dim);
    rest &= ~(1u << axis);
  }
  for (int axis : AxesIn(rest)) result = result.WithShard(axis, dim);
  AddReduceScatterTo(index, axes, result, op);
}

void Search::AddReduceScatterTo(int index, AxisMask axes, const Layout& result, ReduceOp op) {
  RedistributionNode node{
      .result = result, .parent = index, .kind = StepKind::kReduceScatter, .axes = axes, .op = op};
  const int64_t elements = MaxLocalElements(request_.type.shape, result, mesh_);
  Add(node, ReduceScatterTraffic(axes, elements, request_.type.dtype, mesh_));
}

void Search::AddAllReduce(int index, AxisMask axes, ReduceOp op) {
  Layout result = nodes_[index].layout;
  const int64_t elements = MaxLocalElements(request_.type.shape, result, mesh_);
  for (int axis : AxesIn(axes)) result = result.WithReplicate(axis);
  RedistributionNode node{
      .result = result, .parent = index, .kind = StepKind::kAllReduce, .axes = axes, .op = op};
  Add(node, AllReduceTraffic(axes, elements, request_.type.dtype, mesh_));
}

void Search::AddMove(int index, const Layout& result) {
  // Every step takes time: if the layout has been reached sooner than this node, no way from here can win.
  const RedistributionNode& before = nodes_[index];
  if (IsBeaten(LayoutAfter(result), before.bytes, before.us)) return;
  const Move move = DescribeMove(nodes_[index].layout, result, request_.type.shape, mesh_);
  RedistributionNode node{.result = result, .parent = index, .kind = move.kind, .axes = move.axes};
  Add(node, MoveTraffic(move, request_.type.dtype, mesh_));
}

Layout Search::LayoutAfter(const Layout& result) const {
  return exhaustive_ ? result : ends_.SlicedAsFarAsPossible(result);
}

bool Search::IsBeaten(const Layout& layout, int64_t bytes, double us) const {
  return nodes_.Any(layout, [&](const RedistributionNode& known) {
    return bytes_first() ? known.bytes < bytes || (known.bytes == bytes && known.us <= us)
                         : known.us <= us && known.bytes <= bytes;
  });
}

void Search::Add(RedistributionNode node, const StepTraffic& traffic) {
  node.layout = LayoutAfter(node.result);
  if (node.parent >= 0) {
    const RedistributionNode& before = nodes_[node.parent];
    if (!FitsMemory(before, node.kind, node.result)) return;
    node.bytes = before.bytes + traffic.bytes;
    node.us = before.us + cost_model_.Microseconds(traffic) + kTieMicroseconds;
    const bool is_view = node.kind == StepKind::kSlice;
    node.buffer = is_view ? before.buffer : node.result;
    if (request_.max_peak_bytes != INT64_MAX) node.held = is_view ? before.held : PieceBytes(node.result);
  }
  if (node.bytes > request_.max_bytes) return;
  const Score now = ScoreOf(node.bytes, node.us);
  if (best_.has_value() && now.first > best_->first) return;  // as is all that could follow
  if (IsBeaten(node.layout, node.bytes, node.us)) return;
  const int index = nodes_.size();
  const Score left = TryToFinish(node, index);
  const Score estimate = {now.first + left.first, now.second + left.second};
  nodes_.Add(node);
  if (best_.has_value() && !(estimate < *best_)) return;
  open_.emplace_back(estimate, index);
  std::push_heap(open_.begin(), open_.end(), std::greater<>());
}

Score Search::TryToFinish(const RedistributionNode& node, int index) {
  if (const AxisMask pending = ends_.Pending(node.layout); pending != 0)
    return LeastReduction(node.layout, pending);
  const Layout end = ends_.EndBeforePartials(node.layout);
  const Move move = DescribeMove(node.layout, end, request_.type.shape, mesh_);
  const StepTraffic traffic = MoveTraffic(move, request_.type.dtype, mesh_);
  const int64_t bytes = node.bytes + traffic.bytes;
  const Score score = ScoreOf(bytes, node.us + cost_model_.Microseconds(traffic));
  const bool better = !best_.has_value() || score < *best_;
  if (better && bytes <= request_.max_bytes && FitsMemory(node, move.kind, end)) {
    best_ = score;
    best_node_ = index;
  }
  if (traffic.bytes == 0) return {};
  return ScoreOf(traffic.bytes, CostModel::kStepMicroseconds + cheapest_.alpha_us() +
                                    cheapest_.us_per_byte() * static_cast<double>(traffic.bytes));
}

// No plan reduces `layout` for less: a reduce-scatter of what is left when all ranks share in it evenly, and
// then the new piece but for the largest that a rank may then hold.
Score Search::LeastReduction(const Layout& layout, AxisMask pending) const {
  AxisMask sharing = 0;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    const bool shares = layout.IsShard(axis) || (layout.IsReplicate(axis) && (usable_ >> axis & 1));
    if (shares) sharing |= 1u << axis;
  }
  const double terms = static_cast<double>(NumRanksAlong(pending, mesh_));
  const double whole =
      static_cast<double>(request_.type.shape.num_elements() * ItemSize(request_.type.dtype));
  const double reduced = whole / static_cast<double>(NumRanksAlong(sharing, mesh_)) / terms;
  const double gathered = even_ ? std::max(0.0, static_cast<double>(PieceBytes(ends_.to())) - reduced) : 0;
  const double bytes = reduced * (terms - 1) + gathered;
  // A little less, so that rounding does not hide an equal plan.
  const auto least = static_cast<int64_t>(bytes * (1 - 1e-12));
  return ScoreOf(least, CostModel::kStepMicroseconds + cheapest_.alpha_us() +
                            cheapest_.us_per_byte() * static_cast<double>(least));
}

bool Search::FitsMemory(const RedistributionNode& before, StepKind kind, const Layout& result) const {
  if (request_.max_peak_bytes == INT64_MAX) return true;
  const int64_t held = PieceBytes(ends_.from()) + before.held;
  return held + StepMemory(kind, before.buffer, before.layout, result, request_.type, mesh_) <=
         request_.max_peak_bytes;
}

Redistribution Search::Build() const {
  RedistributionBuilder builder(request_.from, request_.to, mesh_);
  std::vector<int> path;
  for (int index = best_node_; index >= 0; index = nodes_[index].parent) path.push_back(index);
  for (auto index = path.rbegin(); index != path.rend(); ++index) {
    const RedistributionNode& node = nodes_[*index];
    if (node.kind == StepKind::kSlice) {
      builder.Slice(node.result);
    } else {
      builder.Append(node.kind, node.axes, node.op, node.result);
    }
    builder.Slice(node.layout);
  }
  builder.MoveTo(ends_.EndBeforePartials(builder.state()), request_.type.shape);
  builder.EnterPartials(ends_.to());
  builder.Slice(request_.to);
  return std::move(builder).Finish();
}

}  // namespace

std::optional<Redistribution> SearchPlan(const PlanRequest& request, const DeviceMesh& mesh,
                                         const CostModel& cost_model) {
  return Search(request, mesh, cost_model).Run();
}

}  // namespace weft
