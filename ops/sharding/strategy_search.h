#ifndef WEFT_OPS_SHARDING_STRATEGY_SEARCH_H_
#define WEFT_OPS_SHARDING_STRATEGY_SEARCH_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "mesh/layout.h"
#include "mesh/redistribution/cost_model.h"
#include "ops/op/op.h"
#include "ops/sharding/axis_candidates.h"
#include "ops/sharding/propagation_trace.h"

namespace weft {

// How one call of an op runs: where its operands must lie, and where its outputs then lie.
struct Strategy {
  std::vector<Layout> operands;
  std::vector<Layout> outputs;
  bool decomposed =
      false;  // run OpDef::Decompose on the operands as they are; `operands` and `outputs` are then empty
  double microseconds = 0;  // predicted: redistribution of the operands + compute share + output bytes

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

// The search behind Propagate, for a call whose rule is parsed and whose decomposition does not run: the
// candidates of each mesh axis in turn, the cheapest combinations kept, then full layouts and exact prices.
// None if every way would move an operand that is updated in place.
std::optional<Strategy> SearchStrategy(const PropagateRequest& request, const CallRule& call,
                                       const DeviceMesh& mesh, const CostModel& cost_model,
                                       PropagationTrace* trace);

}  // namespace weft

#endif  // WEFT_OPS_SHARDING_STRATEGY_SEARCH_H_
