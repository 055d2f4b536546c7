#include "dtensor/optim/clip.h"

#include <algorithm>

#include "dtensor/functions.h"
#include "ops/optimizer/optimizer_update.h"
#include "ops/reduce/reduce.h"

namespace weft {

namespace {

// The sum of scalars: those that lie alike in one call, in their order.
DTensor SumOf(const std::vector<DTensors>& terms) {
  std::vector<std::vector<DTensor>> groups;
  for (const DTensors& term : terms) {
    const auto lies_alike = [&](const std::vector<DTensor>& group) {
      return group[0].type() == term[0].type() && group[0].layout() == term[0].layout();
    };
    const auto found = std::find_if(groups.begin(), groups.end(), lies_alike);
    (found == groups.end() ? groups.emplace_back() : *found).push_back(term[0]);
  }
  DTensor total;
  for (const std::vector<DTensor>& group : groups) {
    const DTensor sum = group.size() == 1 ? group[0] : CallAll(kAddAll, group)[0];
    total = total.defined() ? Add(total, sum) : sum;
  }
  return total;
}

}  // namespace

GlobalNorm ComputeGlobalNorm(const std::vector<Parameter*>& parameters, double max_norm) {
  std::vector<EachCall<>> calls;
  for (const Parameter* parameter : parameters) {
    if (parameter->grad().defined()) calls.push_back({.operands = {parameter->grad()}});
  }
  if (calls.empty())
    Throw(absl::StatusCode::kFailedPrecondition, "ComputeGlobalNorm: no parameter has a gradient");
  RankState& state = calls[0].operands[0]->context->state();
  NoGradGuard no_grad(state);
  // Split gradients give Partial sums; replicated ones join them on a single coordinate, so they count once.
  const DTensor total = SumOf(CallEach(kSumSquares, calls));
  PurposeGuard purpose(state, Purpose::kNorm);
  GlobalNorm result;
  result.norm_squared = total.Redistribute(Layout(/*ndim=*/0, total.layout().num_axes()));
  if (max_norm > 0) result.scale = Call(kClipFactor, {result.norm_squared}, {}, {.max_norm = max_norm});
  return result;
}

}  // namespace weft
