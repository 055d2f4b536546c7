#ifndef WEFT_OPS_PROPAGATE_H_
#define WEFT_OPS_PROPAGATE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "mesh/cost_model.h"
#include "mesh/layout.h"
#include "ops/op.h"
#include "ops/sharding_rule.h"

namespace weft {

// How one call of an op runs: where its operands must lie, and where its outputs then lie.
struct Strategy {
  std::vector<Layout> operands;
  std::vector<Layout> outputs;
  bool lowered =
      false;  // run OpDef::Lower on the operands as they are; `operands` and `outputs` are then empty
  double microseconds = 0;  // predicted: redistribution of the operands + compute share

  bool operator==(const Strategy&) const = default;
};

struct PropagateRequest {
  const OpDef* op = nullptr;
  const void* attributes = nullptr;
  absl::Span<const TensorType> operand_types;
  absl::Span<const Layout> operand_layouts;
  absl::Span<const TensorType> output_types;
  const Layout* like = nullptr;  // wanted layout of output 0 (GradContext::EmitLike); null: no wish
};

// Chooses the strategy of least predicted time: per mesh axis, a factor of the rule to split, a linear group
// that carries a Partial, or neither; then the operand and output layouts that follow.
//
// A factor is a candidate on an axis only if an operand is already split by it there (or `like` is):
// computing a replicated value stays replicated, since a split that looks free is paid for later. Replicate
// becomes Partial only to let an operand join a linear group in which another is Partial. Ties go to the
// candidate listed first: split factors in rule order, then groups, then neither. Deterministic: every rank
// chooses alike.
//
// Cost:   none here; a few microseconds, so callers cache it.
// Errors: InvalidArgument naming op, types and layouts if an in-place operand would have to move.
Strategy Propagate(const PropagateRequest& request, const DeviceMesh& mesh, const CostModel& cost_model);

}  // namespace weft

#endif  // WEFT_OPS_PROPAGATE_H_
