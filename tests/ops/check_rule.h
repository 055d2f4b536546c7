#ifndef WEFT_TESTS_OPS_CHECK_RULE_H_
#define WEFT_TESTS_OPS_CHECK_RULE_H_

#include "gtest/gtest.h"
#include "ops/op.h"

namespace weft {

// Checks what an op says about sharding by running its kernel alone on pieces, with no dispatch (f32 operands
// of the sample become f64). Every promise against the whole call's result:
//   - each factor that is not whole, over 2 and 3 pieces (ceil chunks, maybe empty): operands that have it
//   are sliced,
//     others whole (or Partial terms, where a sum demands it); outputs that have it are concatenated, others
//     reduced by the declared kind;
//   - each linear group, as 2 and 3 asymmetric terms with changing signs: the outputs sum to the whole;
//   - the lowering, on one device.
// Also that the rule parses against the types and that its text form round-trips.
::testing::AssertionResult CheckRule(const OpDef& op, const OpSample& sample);

}  // namespace weft

#endif  // WEFT_TESTS_OPS_CHECK_RULE_H_
