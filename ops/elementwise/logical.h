#ifndef WEFT_OPS_ELEMENTWISE_LOGICAL_H_
#define WEFT_OPS_ELEMENTWISE_LOGICAL_H_

#include "ops/op/op.h"

namespace weft {

// Logic of bools, operands broadcast to their common shape.
// Errors: InvalidArgument for another dtype: compare with 0 first.
extern const Op<> kLogicalAnd;
extern const Op<> kLogicalOr;
extern const Op<> kLogicalXor;
extern const Op<> kLogicalNot;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_LOGICAL_H_
