#include "ops/propagate.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "mesh/redistribution_planner.h"
#include "ops/axis_candidates.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Rough speeds of one device. Only ratios to the mesh's bandwidth matter, and only between candidates.
constexpr double kPointsPerMicrosecond = 1e5;  // points of the iteration space
constexpr double kBytesPerMicrosecond = 3e4;

// Combinations of axes that survive each axis.
constexpr size_t kBeamWidth = 8;

// One candidate for each of the first axes.
struct Choice {
  absl::InlinedVector<const AxisCandidate*, DeviceMesh::kMaxAxes> picks = {};  // by axis
  double transfer_us = 0;  // redistribution so far, estimated axis by axis
  double total_us = 0;     // with the compute share
};

// Keeps the cheapest choices, in the order that they are listed in, so that ties go to what is listed first.
void Prune(std::vector<Choice>& choices) {
  if (choices.size() <= kBeamWidth) return;
  std::vector<size_t> kept(choices.size());
  std::iota(kept.begin(), kept.end(), 0);
  absl::c_stable_sort(kept, [&](size_t a, size_t b) { return choices[a].total_us < choices[b].total_us; });
  kept.resize(kBeamWidth);
  absl::c_sort(kept);
  std::vector<Choice> result;
  for (size_t i : kept) result.push_back(std::move(choices[i]));
  choices = std::move(result);
}

class Search {
 public:
  Search(const PropagateRequest& request, CallRule call, const DeviceMesh& mesh, const CostModel& cost_model)
      : request_(request),
        call_(std::move(call)),
        mesh_(mesh),
        cost_model_(cost_model),
        priced_(request.operand_types.size()) {
    for (const TensorType& type : request.operand_types) operand_bytes_.push_back(NumBytes(type));
    for (const TensorType& type : request.output_types) output_bytes_.push_back(NumBytes(type));
    for (const Factor& factor : call_.rule.factors) points_ *= static_cast<double>(factor.size);
  }

  Strategy Run();

 private:
  static double NumBytes(const TensorType& type) {
    return static_cast<double>(type.shape.num_elements()) * static_cast<double>(ItemSize(type.dtype));
  }

  // Predicted time of the call itself, on one rank: what is computed or touched, and the outputs that it
  // leaves.
  double ComputeMicroseconds(const Choice& choice) const;
  // Predicted time to make operand `operand` what `to` says along `axis`, all else as chosen so far or as it
  // is.
  double AxisMicroseconds(const Choice& choice, int operand, int axis, const Placement& to) const;
  // The choice with one more axis.
  Choice Extend(const Choice& choice, const AxisCandidate& candidate, int axis) const;

  // The axes that `choice` splits `factor` over, outermost first: one order for all operands and outputs.
  AxisList NestingOrder(const Choice& choice, int factor) const;
  Layout LayoutOf(const Choice& choice, const std::vector<AxisList>& orders, const std::vector<int>& dims,
                  const Placements AxisCandidate::*values, size_t index) const;
  // The full layouts with their exact price, or none if an in-place operand would be nested differently.
  std::optional<Strategy> Finish(const Choice& choice);
  double RedistributionMicroseconds(size_t operand, const Layout& to);

  [[noreturn]] void ThrowInPlace() const;

  const PropagateRequest& request_;
  const CallRule call_;
  const DeviceMesh& mesh_;
  const CostModel& cost_model_;
  absl::InlinedVector<double, 4> operand_bytes_;
  absl::InlinedVector<double, 4> output_bytes_;
  double points_ = 1;
  std::vector<absl::InlinedVector<std::pair<Layout, double>, 4>>
      priced_;  // per operand: targets already planned
};

double Search::ComputeMicroseconds(const Choice& choice) const {
  double points = points_;
  for (size_t axis = 0; axis < choice.picks.size(); ++axis) {
    if (choice.picks[axis]->factor >= 0)
      points /= static_cast<double>(mesh_.axis_size(static_cast<int>(axis)));
  }
  const auto local = [&](double bytes, const Placements AxisCandidate::*values, size_t index) {
    for (size_t axis = 0; axis < choice.picks.size(); ++axis) {
      if (!std::holds_alternative<Shard>((choice.picks[axis]->*values)[index])) continue;
      bytes /= static_cast<double>(mesh_.axis_size(static_cast<int>(axis)));
    }
    return bytes;
  };
  double read = 0;
  double written = 0;
  for (size_t i = 0; i < operand_bytes_.size(); ++i)
    read += local(operand_bytes_[i], &AxisCandidate::operands, i);
  for (size_t i = 0; i < output_bytes_.size(); ++i)
    written += local(output_bytes_[i], &AxisCandidate::outputs, i);
  return std::max(points / kPointsPerMicrosecond, (read + written) / kBytesPerMicrosecond) +
         written / kBytesPerMicrosecond;
}

double Search::AxisMicroseconds(const Choice& choice, int operand, int axis, const Placement& to) const {
  const Layout& layout = request_.operand_layouts[operand];
  const double n = static_cast<double>(mesh_.axis_size(axis));
  const Placement from = layout.placement(axis);
  if (n == 1 || from == to || std::holds_alternative<Replicate>(from)) return 0;
  double bytes = operand_bytes_[operand];
  for (int other = 0; other < mesh_.num_axes(); ++other) {
    if (other == axis) continue;
    const bool split = other < axis ? std::holds_alternative<Shard>(choice.picks[other]->operands[operand])
                                    : layout.IsShard(other);
    if (split) bytes /= static_cast<double>(mesh_.axis_size(other));
  }
  const AxisCost& cost = cost_model_.axis(axis);
  const double gather = (n - 1) * (cost.alpha_us + cost.us_per_byte * bytes / n);
  const bool to_shard = std::holds_alternative<Shard>(to);
  if (std::holds_alternative<Partial>(from)) return to_shard ? gather : 2 * gather;
  return to_shard ? (n - 1) * (cost.alpha_us + cost.us_per_byte * bytes / (n * n)) : gather;
}

Choice Search::Extend(const Choice& choice, const AxisCandidate& candidate, int axis) const {
  Choice extended = choice;
  for (size_t i = 0; i < candidate.operands.size(); ++i) {
    extended.transfer_us += AxisMicroseconds(choice, static_cast<int>(i), axis, candidate.operands[i]);
  }
  extended.picks.push_back(&candidate);
  extended.total_us = extended.transfer_us + ComputeMicroseconds(extended);
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

Layout Search::LayoutOf(const Choice& choice, const std::vector<AxisList>& orders,
                        const std::vector<int>& dims, const Placements AxisCandidate::*values,
                        size_t index) const {
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

std::optional<Strategy> Search::Finish(const Choice& choice) {
  std::vector<AxisList> orders;
  for (size_t factor = 0; factor < call_.rule.factors.size(); ++factor) {
    orders.push_back(NestingOrder(choice, static_cast<int>(factor)));
  }
  Strategy strategy;
  strategy.microseconds = ComputeMicroseconds(choice);
  for (size_t i = 0; i < call_.rule.operands.size(); ++i) {
    strategy.operands.push_back(
        LayoutOf(choice, orders, call_.rule.operands[i], &AxisCandidate::operands, i));
    strategy.microseconds += RedistributionMicroseconds(i, strategy.operands.back());
  }
  for (size_t i = 0; i < call_.rule.outputs.size(); ++i) {
    strategy.outputs.push_back(LayoutOf(choice, orders, call_.rule.outputs[i], &AxisCandidate::outputs, i));
  }
  for (size_t i = 0; i < call_.in_place.size(); ++i) {
    const int operand = call_.in_place[i];
    const Layout& there = request_.operand_layouts[operand];
    if (strategy.operands[operand] != there || strategy.outputs[i] != there) return std::nullopt;
  }
  return strategy;
}

double Search::RedistributionMicroseconds(size_t operand, const Layout& to) {
  const Layout& from = request_.operand_layouts[operand];
  if (from == to) return 0;
  for (const auto& [layout, microseconds] : priced_[operand]) {
    if (layout == to) return microseconds;
  }
  const TensorType& type = request_.operand_types[operand];
  const double microseconds =
      cost_model_.Microseconds(PlanRedistribution(from, to, mesh_), type.shape, type.dtype);
  priced_[operand].push_back({to, microseconds});
  return microseconds;
}

void Search::ThrowInPlace() const {
  std::string text;
  for (size_t i = 0; i < request_.operand_types.size(); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", request_.operand_types[i].ToString(), " ",
                    request_.operand_layouts[i].ToString(mesh_));
  }
  ThrowInvalidArgument(request_.op->name(), "(", text, "): an operand of '", request_.op->in_place(),
                       "' is updated in place and would have to move; redistribute first, so that rule ",
                       call_.rule.ToString(), " holds where they lie");
}

Strategy Search::Run() {
  std::vector<std::vector<AxisCandidate>> candidates;  // Choices point into it
  std::vector<Choice> beam(1);
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    candidates.push_back(AxisCandidates(call_, request_.operand_layouts, request_.like, axis));
  }
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    std::vector<Choice> next;
    for (const Choice& choice : beam) {
      for (const AxisCandidate& candidate : candidates[axis]) {
        next.push_back(Extend(choice, candidate, axis));
      }
    }
    Prune(next);
    beam = std::move(next);
  }
  std::optional<Strategy> best;
  for (const Choice& choice : beam) {
    std::optional<Strategy> strategy = Finish(choice);
    if (!strategy.has_value()) continue;
    // A margin, so that rounding in a sum does not decide a tie.
    if (!best.has_value() || strategy->microseconds < best->microseconds * (1 - 1e-9))
      best = std::move(strategy);
  }
  if (!best.has_value()) ThrowInPlace();
  return *std::move(best);
}

bool NeedsLowering(const PropagateRequest& request, const ShardingRule& rule, const DeviceMesh& mesh) {
  if (!request.op->has_lowering()) return false;
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    const Layout& layout = request.operand_layouts[i];
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (!layout.IsShard(axis) || mesh.axis_size(axis) == 1) continue;
      const int factor = rule.operands[i][layout.shard_dim(axis)];
      if (factor >= 0 && rule.factors[factor].whole) return true;
    }
  }
  return false;
}

}  // namespace

Strategy Propagate(const PropagateRequest& request, const DeviceMesh& mesh, const CostModel& cost_model) {
  const OpDef& op = *request.op;
  WEFT_CHECK(request.operand_layouts.size() == request.operand_types.size(), op.name(), ": ",
             request.operand_types.size(), " types and ", request.operand_layouts.size(), " layouts");
  for (size_t i = 0; i < request.operand_layouts.size(); ++i) {
    const Layout& layout = request.operand_layouts[i];
    WEFT_CHECK(layout.ndim() == request.operand_types[i].ndim() && layout.num_axes() == mesh.num_axes(),
               op.name(), ": layout ", layout.ToString(), " of ", request.operand_types[i].ToString(),
               " on mesh ", mesh.ToString());
  }
  WEFT_CHECK(request.like == nullptr || request.like->ndim() == request.output_types[0].ndim(), op.name(),
             ": wants output ", request.output_types[0].ToString(), " like ", request.like->ToString());
  CallRule call;
  call.rule = ShardingRule::Parse(op.Rule(request.operand_types, request.attributes), request.operand_types,
                                  request.output_types);
  if (NeedsLowering(request, call.rule, mesh)) {
    Strategy strategy;
    strategy.lowered = true;
    return strategy;
  }
  call.linear = op.LinearGroups(static_cast<int>(request.operand_types.size()));
  for (absl::string_view name : absl::StrSplit(op.in_place(), ' ', absl::SkipEmpty())) {
    call.in_place.push_back(op.FindValue(name));
  }
  return Search(request, std::move(call), mesh, cost_model).Run();
}

}  // namespace weft
