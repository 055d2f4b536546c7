#ifndef WEFT_OPS_NORMALIZATION_NORM_SECOND_ORDER_H_
#define WEFT_OPS_NORMALIZATION_NORM_SECOND_ORDER_H_

#include <initializer_list>

#include "ops/op/op.h"

namespace weft {

// The operands of layer_norm_grad, or gradients with respect to them; of rms_norm_grad without `mean`, of the
// gradients of weights without `w`.
struct NormGradOperands {
  Value x, w, mean, rstd, dy;
};

// The gradients of its outputs; each may be undefined.
struct NormGradGradients {
  Value dx, dw, db;
};

// The backward of the backward of layer_norm and rms_norm, composed of elementwise ops and sums over rows, in
// the dtype of the statistics. With u, p, q the gradients of dx, dw, db, g = dy * w, n = (x - mean) * rstd and
// A(a) = a - mean a - n * mean(n * a), which is its own transpose (rms_norm: without its middle term):
//   dy: rstd * A(u) * w + p * n + q,   w: sum over rows of rstd * A(u) * dy,
//   n:  p * dy - rstd * (mean(g * n) * u + mean(u * n) * g),
//   x:  rstd * n's,   mean: -sum of x's,   rstd: sum of (x - mean) * n's + u * A(g).
// The statistics count as operands of their own: what they owe to x is the norm's backward.
// Cost: about thirty passes over x.
NormGradOperands DifferentiateNormGrad(Emitter& emitter, const NormGradOperands& operands,
                                       const NormGradGradients& gradients);

// What gradients of the statistics add to that of x; either may be undefined, as is the sum if both are:
//   mean / d - rstd^2 * n * rstd's / d.
Value StatisticsGrad(Emitter& emitter, const NormGradOperands& operands, Value mean_gradient,
                     Value rstd_gradient);

// Sets the gradients of the operands that want them, in their order; undefined: none.
template <class A>
void SetWanted(GradContext<A, NoScalars>& ctx, std::initializer_list<Value> gradients) {
  int operand = 0;
  for (const Value gradient : gradients) {
    if (gradient.defined() && ctx.Wants(operand)) ctx.SetGrad(operand, gradient);
    ++operand;
  }
}

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_NORM_SECOND_ORDER_H_
