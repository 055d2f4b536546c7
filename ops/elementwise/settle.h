#ifndef WEFT_OPS_ELEMENTWISE_SETTLE_H_
#define WEFT_OPS_ELEMENTWISE_SETTLE_H_

#include "ops/op/op.h"

namespace weft {

// y = x, but never Partial: it has no linear group, so a Partial operand is reduced first.
// Decompositions put it between a statistic and several ops that read it: without it each would reduce it.
//
// Operands: x, any type.  Outputs: y, a view of x.
extern const Op<> kSettle;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_SETTLE_H_
