#include "dtensor/optim/clip.h"

#include "dtensor/functions.h"
#include "ops/optimizer_update.h"
#include "ops/reduce.h"

namespace weft {

GlobalNorm ComputeGlobalNorm(const std::vector<Parameter*>& parameters, double max_norm) {
  DTensor total;
  for (const Parameter* parameter : parameters) {
    const DTensor& gradient = parameter->grad();
    if (!gradient.defined()) continue;
    NoGradGuard no_grad(gradient.context()->state());
    // Split gradients give Partial sums; a replicated one joins them on a single coordinate, so it counts
    // once.
    const DTensor squares = Call(kSumSquares, {gradient});
    total = total.defined() ? Add(total, squares) : squares;
  }
  if (!total.defined())
    Throw(absl::StatusCode::kFailedPrecondition, "ComputeGlobalNorm: no parameter has a gradient");
  RankState& state = total.context()->state();
  NoGradGuard no_grad(state);
  PurposeGuard purpose(state, Purpose::kNorm);
  GlobalNorm result;
  result.norm_squared = total.Redistribute(Layout(/*ndim=*/0, total.layout().num_axes()));
  if (max_norm > 0) result.scale = Call(kClipFactor, {result.norm_squared}, {}, {.max_norm = max_norm});
  return result;
}

}  // namespace weft
