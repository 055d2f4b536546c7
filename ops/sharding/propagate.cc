#include "ops/sharding/propagate.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ops/sharding/axis_candidates.h"
#include "ops/sharding/view_strategy.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Where the operands would have to lie, were the one that is updated in place allowed to move first.
[[noreturn]] void ThrowInPlace(const PropagateRequest& request, const CallRule& call, const DeviceMesh& mesh,
                               const CostModel& cost_model) {
  // The same search without that restriction: its candidates are what the message proposes.
  CallRule free = call;
  free.in_place.clear();
  PropagationTrace trace;
  SearchStrategy(request, free, mesh, cost_model, &trace);
  absl::c_for_each(trace.candidates, [&](TracedCandidate& candidate) {
    for (size_t i = 0; i < call.in_place.size() && i < candidate.outputs.size(); ++i) {
      if (candidate.outputs[i] == candidate.operands[call.in_place[i]]) continue;
      candidate.fate = CandidateFate::kMovesInPlace;
    }
  });
  const std::string nearest =
      NearestLegalLayouts(trace, request.operand_types, request.operand_layouts, mesh, cost_model);
  ThrowInvalidArgument(CallText(request.op->name(), request.operand_types, request.operand_layouts, mesh),
                       ": an operand of '", request.op->in_place(),
                       "' is updated in place and would have to move; redistribute first, so that rule ",
                       call.rule.ToString(), " holds where they lie", nearest.empty() ? "" : "; ", nearest);
}

// Why the op's decomposition runs: an operand is split by a factor that the op itself needs whole. Empty if
// not.
std::string WhyDecomposed(const PropagateRequest& request, const ShardingRule& rule, const DeviceMesh& mesh) {
  if (!request.op->has_decomposition()) return "";
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    const Layout& layout = request.operand_layouts[i];
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (!layout.IsShard(axis) || mesh.axis_size(axis) == 1) continue;
      const int factor = rule.operands[i][layout.shard_dim(axis)];
      if (factor < 0 || !rule.factors[factor].whole) continue;
      return absl::StrCat("operand ", i, " is split by ", rule.factors[factor].name, "! along ",
                          mesh.axis_name(axis));
    }
  }
  return "";
}

}  // namespace

Strategy Propagate(const PropagateRequest& request, const DeviceMesh& mesh, const CostModel& cost_model,
                   PropagationTrace* trace) {
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
  call.linear = op.LinearGroups(static_cast<int>(request.operand_types.size()));
  for (absl::string_view name : absl::StrSplit(op.in_place(), ' ', absl::SkipEmpty())) {
    call.in_place.push_back(op.FindValue(name));
  }
  call.not_floating = NotFloating(request.operand_types);
  if (trace != nullptr) trace->call = call;
  // What a view can be without moving follows from layout algebra: there is nothing to choose.
  if (call.rule.is_view) return PropagateView(request, mesh, cost_model, trace);
  // Before the search, which only knows the op's own kernel: there a whole factor that is split would be
  // gathered. The calls that the decomposition makes are propagated one by one.
  if (std::string why = WhyDecomposed(request, call.rule, mesh); !why.empty()) {
    if (trace != nullptr) trace->decomposed_because = std::move(why);
    Strategy strategy;
    strategy.decomposed = true;
    return strategy;
  }
  std::optional<Strategy> best = SearchStrategy(request, call, mesh, cost_model, trace);
  // An update in place cannot be moved first: the copy would be updated instead.
  if (!best.has_value()) ThrowInPlace(request, call, mesh, cost_model);
  return *std::move(best);
}

}  // namespace weft
