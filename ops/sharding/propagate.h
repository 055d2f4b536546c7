#ifndef WEFT_OPS_SHARDING_PROPAGATE_H_
#define WEFT_OPS_SHARDING_PROPAGATE_H_

#include "mesh/redistribution/cost_model.h"
#include "ops/sharding/propagation_trace.h"
#include "ops/sharding/strategy_search.h"

namespace weft {

// Chooses the strategy of least predicted time: per mesh axis, a factor of the rule to split, a linear group
// that carries a Partial, or neither; then the operand and output layouts that follow.
//
// A factor is a candidate on an axis only if an operand is already split by it there (or `like` is):
// computing a replicated value stays replicated, since a split that looks free is paid for later. Replicate
// becomes Partial only to let an operand join a linear group in which another is Partial. Ties go to the
// candidate listed first: split factors in rule order, then groups, then neither. Deterministic: every rank
// chooses alike.
//
// Worked example: x f32[4096, 256] and w f32[256, 512], rule "m k, k n -> m n", on mesh dp=4. Candidates with
// their predicted microseconds; the winner stands first.
//
//   x        w        candidates                                                             y
//   [dp, -]  [dp, -]  split m 1466 (gathers w) | split k 1720 (moves x) | neither 6032       [dp, -]
//   [-, dp]  [dp, -]  split k 1622 (nothing moves) | neither 6032                            [-, -] P{dp}
//   [-, dp]  [-, dp]  split k 1652 (moves w) | split n 1742 (gathers x) | neither 6032       [-, -] P{dp}
//
// "split n" is no candidate in the first two lines, nor "split m" in the last two: no operand is split by it.
//
// A view ("~>") keeps every split whose pieces are boxes of the output: see ops/sharding/view_strategy.h.
//
// The predicted time is the sum of three: the redistributions of the operands (the mesh's cost model); one
// rank's share of the work, at fixed rates for arithmetic and memory; writing one rank's outputs, once more,
// since whoever reads an output pays for what is not split. Combinations of axes are searched by a beam of 8.
// Redistributions are not planned for it: RedistributionMicroseconds takes the greedy plan, or the direct move where
// nothing is Partial. Where a Partial is involved, the plan that runs may be several times as fast.
//
// `trace`, if not null, gets all that was weighed; the choice is the same with and without.
//
// Cost:   none here; some tens of microseconds (benchmarks/propagate), so callers cache it.
// Errors: InvalidArgument naming op, types, layouts and the nearest legal layouts if an in-place operand
//         would have to move.
Strategy Propagate(const PropagateRequest& request, const DeviceMesh& mesh, const CostModel& cost_model,
                   PropagationTrace* trace = nullptr);

}  // namespace weft

#endif  // WEFT_OPS_SHARDING_PROPAGATE_H_
