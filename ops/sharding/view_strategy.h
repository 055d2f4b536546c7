#ifndef WEFT_OPS_SHARDING_VIEW_STRATEGY_H_
#define WEFT_OPS_SHARDING_VIEW_STRATEGY_H_

#include "ops/sharding/strategy_search.h"

namespace weft {

// Propagate for a view ("x! ~> y!"): the operand stays where it is if its pieces are boxes of the output;
// otherwise it is brought to the layout nearest by predicted time that has such pieces. An axis that cannot
// stay may move to another dim of the operand; it is gathered only where none takes it. Partial (sum, avg)
// axes pass; of other kinds they are reduced first. `trace`, if not null, gets the layouts that were weighed.
Strategy PropagateView(const PropagateRequest& request, const DeviceMesh& mesh, const CostModel& cost_model,
                       PropagationTrace* trace);

}  // namespace weft

#endif  // WEFT_OPS_SHARDING_VIEW_STRATEGY_H_
