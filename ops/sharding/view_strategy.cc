#include "ops/sharding/view_strategy.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "mesh/redistribution/price.h"
#include "mesh/view_algebra.h"

namespace weft {
namespace {

class ViewSearch {
 public:
  ViewSearch(const PropagateRequest& request, const DeviceMesh& mesh, const CostModel& cost_model,
             PropagationTrace* trace)
      : from_(request.operand_types[0]),
        to_(request.output_types[0].shape),
        at_(request.operand_layouts[0]),
        mesh_(mesh),
        cost_model_(cost_model),
        trace_(trace) {}

  Strategy Run() {
    Search(WithoutOddPartials());
    if (trace_ != nullptr) NoteFates();
    return *std::move(best_);
  }

 private:
  void Search(const Layout& start) {
    for (int dim = 0; dim < from_.ndim(); ++dim) {
      for (int axis : start.ShardAxes(dim)) axes_.push_back(axis);
    }
    if (Consider(start)) return;
    // Subsets of the axes that stay, the largest numbers first; all stay was the case above, and none always
    // is one.
    for (uint32_t kept = (uint32_t{1} << axes_.size()) - 1; kept-- > 0;) TryKeeping(start, kept);
  }

  // The kinds that do not pass are reduced, whatever else happens.
  Layout WithoutOddPartials() const {
    Layout layout = at_;
    for (int axis : at_.PartialAxes()) {
      const ReduceOp op = at_.partial_op(axis);
      if (op != ReduceOp::kSum && op != ReduceOp::kAvg) layout = layout.WithReplicate(axis);
    }
    return layout;
  }

  // Axes outside `kept` are replicated, then put where they fit and are cheapest, one after another.
  void TryKeeping(const Layout& start, uint32_t kept) {
    Layout layout = start;
    for (size_t i = 0; i < axes_.size(); ++i) {
      if ((kept >> i & 1) == 0) layout = layout.WithReplicate(axes_[i]);
    }
    if (!Consider(layout)) return;
    for (size_t i = 0; i < axes_.size(); ++i) {
      if ((kept >> i & 1) != 0) continue;
      Layout cheapest = layout;
      for (int dim = 0; dim < from_.ndim(); ++dim) {
        const Layout moved = layout.WithShard(axes_[i], dim);
        if (Consider(moved) && Microseconds(moved) < Microseconds(cheapest) * (1 - 1e-9)) cheapest = moved;
      }
      layout = cheapest;
    }
  }

  double Microseconds(const Layout& layout) const {
    return RedistributionMicroseconds(at_, layout, from_, mesh_, cost_model_);
  }

  // Whether the view is legal from `layout`; if so, and it is the cheapest so far, remembers it.
  bool Consider(const Layout& layout) {
    const std::optional<Layout> output = ViewLayout(from_.shape, layout, to_, mesh_);
    if (!output.has_value()) return false;
    const double microseconds = Microseconds(layout);
    if (trace_ != nullptr) Note(layout, *output, microseconds);
    // A margin, so that rounding in a sum does not decide a tie.
    if (!best_.has_value() || microseconds < best_->microseconds * (1 - 1e-9)) {
      best_ = Strategy{.operands = {layout}, .outputs = {*output}, .microseconds = microseconds};
    }
    return true;
  }

  void Note(const Layout& layout, const Layout& output, double microseconds) {
    const auto is_same = [&](const TracedCandidate& other) { return other.operands[0] == layout; };
    if (absl::c_any_of(trace_->candidates, is_same)) return;
    TracedCandidate candidate = {
        .operands = {layout}, .outputs = {output}, .operand_us = {microseconds}, .transfer_us = microseconds};
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      candidate.picks.push_back({.operands = {layout.placement(axis)}, .outputs = {output.placement(axis)}});
    }
    trace_->candidates.push_back(std::move(candidate));
  }

  void NoteFates() {
    for (TracedCandidate& candidate : trace_->candidates) {
      if (candidate.operands == best_->operands) {
        candidate.fate = CandidateFate::kChosen;
      } else if (candidate.transfer_us <= best_->microseconds * (1 + 1e-9)) {
        candidate.fate = CandidateFate::kTie;
      }
    }
  }

  const TensorType& from_;
  const Shape& to_;
  const Layout& at_;
  const DeviceMesh& mesh_;
  const CostModel& cost_model_;
  PropagationTrace* trace_;
  AxisList axes_;  // that split the operand
  std::optional<Strategy> best_;
};

}  // namespace

Strategy PropagateView(const PropagateRequest& request, const DeviceMesh& mesh, const CostModel& cost_model,
                       PropagationTrace* trace) {
  return ViewSearch(request, mesh, cost_model, trace).Run();
}

}  // namespace weft
