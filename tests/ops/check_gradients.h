// Gradients of ops against central differences in f64.

#ifndef WEFT_TESTS_OPS_CHECK_GRADIENTS_H_
#define WEFT_TESTS_OPS_CHECK_GRADIENTS_H_

#include <vector>

#include "gtest/gtest.h"
#include "ops/op/op.h"

namespace weft {

struct GradientCheck {
  double tolerance = 1e-6;
  // Outputs that serve the op's own backward alone (a norm's mean): the rule refuses a gradient of them.
  std::vector<int> statistics;
};

// Checks backward against central differences of the sum over all floating outputs of random weights times
// elements, in f64 (f32 operands of the sample become f64): all outputs together, every output alone (the
// others' gradients undefined), and with one operand wanted at a time.
//
// Elements may differ by tolerance * max(1, |g|). Where an output has less precision than f64 (a cast), the
// step and the tolerance grow with its rounding.
// Errors: as the op's; those of the harness if the rule breaks its own declaration.
::testing::AssertionResult CheckGradients(const OpDef& op, const OpSample& sample,
                                          const GradientCheck& check = {});

// The same for a sample with attribute types.
template <class A, class R>
::testing::AssertionResult CheckGradients(const Op<A, R>& op, const Sample<A, R>& sample,
                                          const GradientCheck& check = {}) {
  return CheckGradients(
      op, {sample.operands, op.CloneAttributes(&sample.attributes), op.CloneScalars(&sample.scalars)}, check);
}

// Whether the sample can be checked: some operand and some output is floating, and no output has 16 bits
// (differences would measure its rounding).
bool CanCheckGradients(const OpDef& op, const OpSample& sample);

}  // namespace weft

#endif  // WEFT_TESTS_OPS_CHECK_GRADIENTS_H_
