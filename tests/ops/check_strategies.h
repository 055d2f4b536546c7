#ifndef WEFT_TESTS_OPS_CHECK_STRATEGIES_H_
#define WEFT_TESTS_OPS_CHECK_STRATEGIES_H_

#include "ops/op.h"

namespace weft {

// What the strategies of some calls were like: a test that splits nothing tests nothing.
struct StrategyCounts {
  int run = 0;      // strategies carried out
  int split = 0;    // outputs that were split and not Partial
  int partial = 0;  // outputs that were Partial
  int lowered = 0;
  int refused = 0;  // in-place operands that would have had to move
};

// Carries out what Propagate chooses, with no dispatch: operands are laid as the strategy says over meshes of
// up to three axes, Partials as asymmetric terms of changing signs, the kernel runs alone on every rank's
// pieces, and what the outputs' layouts denote must be the whole call's result (a GoogleTest failure, else).
// Operand layouts are drawn at random, `rounds` a mesh; f32 operands of the sample become f64.
StrategyCounts CheckStrategies(const OpDef& op, const OpSample& sample, int rounds);

}  // namespace weft

#endif  // WEFT_TESTS_OPS_CHECK_STRATEGIES_H_
