#include "ops/sharding/strategy_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "mesh/redistribution/price.h"

namespace weft {
namespace {

// What the machine does in a microsecond. A point of the iteration space is a multiplication and an addition.
struct Speeds {
  explicit Speeds(const Machine& machine)
      : points_per_us(machine.flops / 2 / 1e6), bytes_per_us(machine.bytes_per_second / 1e6) {}

  double points_per_us;
  double bytes_per_us;
};

// Combinations of axes that survive each axis.
constexpr size_t kBeamWidth = 8;

// A margin, so that rounding in a sum does not decide a tie.
constexpr double kTieMargin = 1e-9;

using Bytes = absl::InlinedVector<double, 4>;

// One candidate for each of the first axes, and what one rank then computes, reads and writes.
struct Choice {
  absl::InlinedVector<const AxisCandidate*, DeviceMesh::kMaxAxes> picks = {};  // by axis
  double transfer_us = 0;  // redistribution so far, estimated axis by axis
  double points = 1;       // of the iteration space
  Bytes operand_bytes = {};
  Bytes output_bytes = {};

  double written() const { return std::accumulate(output_bytes.begin(), output_bytes.end(), 0.0); }
  // The share of the work: as long as its arithmetic or its memory traffic takes, whichever is longer.
  double compute_us(const Speeds& speeds) const {
    const double read = std::accumulate(operand_bytes.begin(), operand_bytes.end(), 0.0);
    return std::max(points / speeds.points_per_us, (read + written()) / speeds.bytes_per_us);
  }
  // The outputs that it leaves: whoever reads them pays once more for what is not split.
  double output_us(const Speeds& speeds) const { return written() / speeds.bytes_per_us; }
  // All but the redistributions.
  double work_us(const Speeds& speeds) const { return compute_us(speeds) + output_us(speeds); }
  double total_us(const Speeds& speeds) const { return transfer_us + compute_us(speeds) + output_us(speeds); }
};

// Keeps the cheapest choices, in the order that they are listed in, so that ties go to what is listed first.
// Returns the others.
std::vector<Choice> Prune(std::vector<Choice>& choices, const Speeds& speeds) {
  std::vector<Choice> dropped;
  if (choices.size() <= kBeamWidth) return dropped;
  std::vector<std::pair<double, size_t>> order;
  order.reserve(choices.size());
  for (size_t i = 0; i < choices.size(); ++i) order.push_back({choices[i].total_us(speeds), i});
  std::nth_element(order.begin(), order.begin() + kBeamWidth, order.end());
  std::vector<bool> kept(choices.size());
  for (size_t i = 0; i < kBeamWidth; ++i) kept[order[i].second] = true;
  std::vector<Choice> result;
  result.reserve(kBeamWidth);
  for (size_t i = 0; i < choices.size(); ++i) {
    (kept[i] ? result : dropped).push_back(std::move(choices[i]));
  }
  choices = std::move(result);
  return dropped;
}

class Search {
 public:
  Search(const PropagateRequest& request, const CallRule& call, const DeviceMesh& mesh,
         const CostModel& cost_model, PropagationTrace* trace)
      : request_(request),
        call_(call),
        mesh_(mesh),
        cost_model_(cost_model),
        speeds_(cost_model.machine()),
        trace_(trace),
        priced_(request.operand_types.size()) {
    for (const TensorType& type : request.operand_types) operand_bytes_.push_back(NumBytes(type));
    for (const TensorType& type : request.output_types) output_bytes_.push_back(NumBytes(type));
  }

  // None if every way would move an operand that is updated in place.
  std::optional<Strategy> Run();

 private:
  static double NumBytes(const TensorType& type) {
    return static_cast<double>(type.shape.num_elements()) * static_cast<double>(ItemSize(type.dtype));
  }

  Choice Start() const;
  // Predicted time to make operand `operand` what `to` says along `axis`, all else as chosen so far or as it
  // is.
  double AxisMicroseconds(const Choice& choice, int operand, int axis, const Placement& to) const;
  // The choice with one more axis.
  Choice Extend(const Choice& choice, const AxisCandidate& candidate, int axis) const;

  // The axes that `choice` splits `factor` over, outermost first: one order for all operands and outputs.
  AxisList NestingOrder(const Choice& choice, int factor) const;
  Layout LayoutOf(const Choice& choice, absl::Span<const AxisList> orders, const std::vector<int>& dims,
                  const Placements AxisCandidate::*values, size_t index) const;
  // The full layouts, not yet priced.
  Strategy Finish(const Choice& choice) const;
  bool KeepsInPlace(const Strategy& strategy) const;
  // Exact, of the layouts that Finish gave.
  double RedistributionOf(size_t operand, const Layout& to);
  double TransferOf(const Strategy& strategy);

  std::optional<Strategy> Best(const std::vector<Choice>& beam);
  void Trace(const Choice& choice, const Strategy* strategy, CandidateFate fate);
  void SettleFates(const Strategy& best, size_t first);

  const PropagateRequest& request_;
  const CallRule& call_;
  const DeviceMesh& mesh_;
  const CostModel& cost_model_;
  const Speeds speeds_;
  PropagationTrace* const trace_;
  Bytes operand_bytes_;
  Bytes output_bytes_;
  // Per operand: targets already planned.
  std::vector<absl::InlinedVector<std::pair<Layout, double>, 4>> priced_;
};

Choice Search::Start() const {
  Choice choice;
  for (const Factor& factor : call_.rule.factors) choice.points *= static_cast<double>(factor.size);
  choice.operand_bytes = operand_bytes_;
  choice.output_bytes = output_bytes_;
  return choice;
}

double Search::AxisMicroseconds(const Choice& choice, int operand, int axis, const Placement& to) const {
  const Layout& layout = request_.operand_layouts[operand];
  const double n = static_cast<double>(mesh_.axis_size(axis));
  if (n == 1 || layout.IsReplicate(axis)) return 0;
  if (layout.placement(axis) == to) return 0;
  double bytes = operand_bytes_[operand];
  for (int other = 0; other < mesh_.num_axes(); ++other) {
    if (other == axis) continue;
    // Axes before this one are as chosen, those after it still as they were: what moves here is what is left
    // of the operand between the two.
    const bool split = other < axis ? std::holds_alternative<Shard>(choice.picks[other]->operands[operand])
                                    : layout.IsShard(other);
    if (split) bytes /= static_cast<double>(mesh_.axis_size(other));
  }
  // A gather or scatter of n pieces; an exchange of n-1 of n pieces of a piece.
  const auto microseconds = [&](double rounds, double received) {
    return cost_model_.Microseconds({.bytes = static_cast<int64_t>(received),
                                     .rounds = static_cast<int64_t>(rounds),
                                     .axes = AxisMask{1} << axis});
  };
  const double doublings = std::ceil(std::log2(n));
  const double gathered = bytes / n * (n - 1);
  const bool to_shard = std::holds_alternative<Shard>(to);
  if (layout.IsPartial(axis)) {
    return to_shard ? microseconds(doublings, gathered) : microseconds(2 * doublings, 2 * gathered);
  }
  return to_shard ? microseconds(n - 1, gathered / n) : microseconds(doublings, gathered);
}

Choice Search::Extend(const Choice& choice, const AxisCandidate& candidate, int axis) const {
  Choice extended = choice;
  const double n = static_cast<double>(mesh_.axis_size(axis));
  for (size_t i = 0; i < candidate.operands.size(); ++i) {
    extended.transfer_us += AxisMicroseconds(choice, static_cast<int>(i), axis, candidate.operands[i]);
    if (std::holds_alternative<Shard>(candidate.operands[i])) extended.operand_bytes[i] /= n;
  }
  for (size_t i = 0; i < candidate.outputs.size(); ++i) {
    if (std::holds_alternative<Shard>(candidate.outputs[i])) extended.output_bytes[i] /= n;
  }
  if (candidate.factor >= 0) extended.points /= n;
  extended.picks.push_back(&candidate);
  return extended;
}

// The order of the operand that would be dearest to nest anew: in-place ones first, then those already split
// over several of the axes, then by bytes; axes that it lacks come innermost, where it only has to be sliced.
// Operands nested differently would pair different pieces and give wrong products.
AxisList Search::NestingOrder(const Choice& choice, int factor) const {
  AxisList axes;
  for (size_t axis = 0; axis < choice.picks.size(); ++axis) {
    if (choice.picks[axis]->factor == factor) axes.push_back(static_cast<int>(axis));
  }
  if (axes.size() < 2) return axes;
  AxisList order;
  std::tuple<bool, bool, double> best = {false, false, -1};
  const auto consider = [&](const Layout& layout, const std::vector<int>& dims, bool in_place, double bytes) {
    const int dim = DimOfFactor(dims, factor);
    if (dim < 0) return;
    AxisList held = layout.ShardAxes(dim);
    if (held.empty()) return;
    held.erase(std::remove_if(held.begin(), held.end(),
                              [&](int axis) { return !absl::c_linear_search(axes, axis); }),
               held.end());
    const std::tuple<bool, bool, double> rank = {in_place, held.size() > 1, bytes};
    if (held.empty() || rank <= best) return;
    best = rank;
    order = held;
  };
  for (size_t i = 0; i < operand_bytes_.size(); ++i) {
    const bool in_place = absl::c_linear_search(call_.in_place, static_cast<int>(i));
    consider(request_.operand_layouts[i], call_.rule.operands[i], in_place, operand_bytes_[i]);
  }
  if (request_.like != nullptr && order.empty()) {
    consider(*request_.like, call_.rule.outputs[0], /*in_place=*/false, output_bytes_[0]);
  }
  for (int axis : axes) {
    if (!absl::c_linear_search(order, axis)) order.push_back(axis);
  }
  return order;
}

Layout Search::LayoutOf(const Choice& choice, absl::Span<const AxisList> orders, const std::vector<int>& dims,
                        const Placements AxisCandidate::*values, size_t index) const {
  Layout layout(static_cast<int>(dims.size()), mesh_.num_axes());
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    if (dims[dim] < 0) continue;
    for (int axis : orders[dims[dim]]) layout = layout.WithShard(axis, static_cast<int>(dim));
  }
  for (size_t axis = 0; axis < choice.picks.size(); ++axis) {
    const Partial* partial = std::get_if<Partial>(&(choice.picks[axis]->*values)[index]);
    if (partial != nullptr) layout = layout.WithPartial(static_cast<int>(axis), partial->op);
  }
  return layout;
}

Strategy Search::Finish(const Choice& choice) const {
  absl::InlinedVector<AxisList, 8> orders;
  for (size_t factor = 0; factor < call_.rule.factors.size(); ++factor) {
    orders.push_back(NestingOrder(choice, static_cast<int>(factor)));
  }
  Strategy strategy;
  strategy.operands.reserve(call_.rule.operands.size());
  strategy.outputs.reserve(call_.rule.outputs.size());
  for (size_t i = 0; i < call_.rule.operands.size(); ++i) {
    strategy.operands.push_back(
        LayoutOf(choice, orders, call_.rule.operands[i], &AxisCandidate::operands, i));
  }
  for (size_t i = 0; i < call_.rule.outputs.size(); ++i) {
    strategy.outputs.push_back(LayoutOf(choice, orders, call_.rule.outputs[i], &AxisCandidate::outputs, i));
  }
  return strategy;
}

bool Search::KeepsInPlace(const Strategy& strategy) const {
  for (size_t i = 0; i < call_.in_place.size(); ++i) {
    const int operand = call_.in_place[i];
    const Layout& there = request_.operand_layouts[operand];
    if (strategy.operands[operand] != there || strategy.outputs[i] != there) return false;
  }
  return true;
}

double Search::RedistributionOf(size_t operand, const Layout& to) {
  const Layout& from = request_.operand_layouts[operand];
  if (from == to) return 0;
  for (const auto& [layout, microseconds] : priced_[operand]) {
    if (layout == to) return microseconds;
  }
  const TensorType& type = request_.operand_types[operand];
  const double microseconds = RedistributionMicroseconds(from, to, type, mesh_, cost_model_);
  priced_[operand].push_back({to, microseconds});
  return microseconds;
}

double Search::TransferOf(const Strategy& strategy) {
  double microseconds = 0;
  for (size_t i = 0; i < strategy.operands.size(); ++i) {
    microseconds += RedistributionOf(i, strategy.operands[i]);
  }
  return microseconds;
}

// What a search without a trace leaves out, it leaves out for certain: a choice whose work alone takes longer
// than another's whole cost needs no plan of its redistributions.
std::optional<Strategy> Search::Best(const std::vector<Choice>& beam) {
  double bound = std::numeric_limits<double>::infinity();
  const auto finish = [&](const Choice& choice) -> std::optional<Strategy> {
    Strategy strategy = Finish(choice);
    if (!KeepsInPlace(strategy)) {
      if (trace_ != nullptr) Trace(choice, &strategy, CandidateFate::kMovesInPlace);
      return std::nullopt;
    }
    strategy.microseconds = TransferOf(strategy) + choice.compute_us(speeds_) + choice.output_us(speeds_);
    if (trace_ != nullptr) Trace(choice, &strategy, CandidateFate::kCostlier);
    bound = std::min(bound, strategy.microseconds);
    return strategy;
  };
  const auto promising = absl::c_min_element(
      beam, [this](const Choice& a, const Choice& b) { return a.total_us(speeds_) < b.total_us(speeds_); });
  std::optional<Strategy> likely;
  if (trace_ == nullptr && promising != beam.end()) likely = finish(*promising);
  std::optional<Strategy> best;
  for (auto choice = beam.begin(); choice != beam.end(); ++choice) {
    const double least = choice->work_us(speeds_);
    if (trace_ == nullptr && least > bound * (1 + 2 * kTieMargin)) continue;
    std::optional<Strategy> strategy = trace_ == nullptr && choice == promising ? likely : finish(*choice);
    if (!strategy.has_value()) continue;
    if (!best.has_value() || strategy->microseconds < best->microseconds * (1 - kTieMargin)) {
      best = std::move(strategy);
    }
  }
  return best;
}

void Search::Trace(const Choice& choice, const Strategy* strategy, CandidateFate fate) {
  TracedCandidate traced;
  for (const AxisCandidate* pick : choice.picks) traced.picks.push_back(*pick);
  traced.compute_us = choice.compute_us(speeds_);
  traced.output_us = choice.output_us(speeds_);
  traced.transfer_us = choice.transfer_us;
  traced.fate = fate;
  if (strategy != nullptr) {
    traced.operands = strategy->operands;
    traced.outputs = strategy->outputs;
    for (size_t i = 0; i < traced.operands.size(); ++i) {
      traced.operand_us.push_back(RedistributionOf(i, traced.operands[i]));
    }
    traced.transfer_us = std::accumulate(traced.operand_us.begin(), traced.operand_us.end(), 0.0);
  }
  trace_->candidates.push_back(std::move(traced));
}

// Says of the candidates from `first` on which was chosen and which lost only for being listed later.
void Search::SettleFates(const Strategy& best, size_t first) {
  bool found = false;
  for (size_t i = first; i < trace_->candidates.size(); ++i) {
    TracedCandidate& candidate = trace_->candidates[i];
    if (candidate.fate != CandidateFate::kCostlier) continue;
    if (!found && candidate.operands == best.operands && candidate.outputs == best.outputs) {
      candidate.fate = CandidateFate::kChosen;
      found = true;
    } else if (candidate.total_us() <= best.microseconds * (1 + kTieMargin)) {
      candidate.fate = CandidateFate::kTie;
    }
  }
}

std::optional<Strategy> Search::Run() {
  std::vector<std::vector<AxisCandidate>> candidates;  // Choices point into it
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    candidates.push_back(AxisCandidates(call_, request_.operand_layouts, request_.like, axis,
                                        trace_ != nullptr ? &trace_->refused : nullptr));
  }
  // A beam search over the axes, as c candidates on each of a axes would be c^a layouts: each axis extends
  // every kept choice by each of its candidates, at estimated prices; only what is left at the end gets
  // layouts and exact ones.
  std::vector<Choice> beam = {Start()};
  std::vector<Choice> pruned;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    std::vector<Choice> next;
    next.reserve(beam.size() * candidates[axis].size());
    for (const Choice& choice : beam) {
      for (const AxisCandidate& candidate : candidates[axis]) {
        next.push_back(Extend(choice, candidate, axis));
      }
    }
    std::vector<Choice> dropped = Prune(next, speeds_);
    if (trace_ != nullptr) absl::c_move(dropped, std::back_inserter(pruned));
    beam = std::move(next);
  }
  const size_t first = trace_ != nullptr ? trace_->candidates.size() : 0;
  std::optional<Strategy> best = Best(beam);
  if (trace_ == nullptr) return best;
  if (best.has_value()) SettleFates(*best, first);
  for (const Choice& choice : pruned) Trace(choice, nullptr, CandidateFate::kPruned);
  return best;
}

}  // namespace

std::optional<Strategy> SearchStrategy(const PropagateRequest& request, const CallRule& call,
                                       const DeviceMesh& mesh, const CostModel& cost_model,
                                       PropagationTrace* trace) {
  return Search(request, call, mesh, cost_model, trace).Run();
}

}  // namespace weft
