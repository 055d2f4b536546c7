#ifndef WEFT_OPS_OPTIMIZER_OPTIMIZER_UPDATE_H_
#define WEFT_OPS_OPTIMIZER_OPTIMIZER_UPDATE_H_

#include "ops/op/op.h"

namespace weft {

// In-place updates of a parameter p and its optimizer state, one fused pass each, from the gradient g, which
// is first multiplied by the scalar s (f32 or f64; see kClipFactor). If s is not finite nothing changes: a
// step whose gradients overflowed skips itself, without a value read back to the host.
//
// Shape:  p, state and g of one shape; p and state of one floating dtype, g of any.
// Errors: InvalidArgument naming the op and the types.

// t += 1: how many updates were made. t is an i64 scalar on the device, so that a skipped update is not
// counted and the host need not know.
extern const Op<> kCountUpdate;  // (t, s)

// What the t-th update of AdamW, counting from 1, multiplies by: r, f64[2], is [lr / (1 - beta1^t), 1 /
// sqrt(1 - beta2^t)]. Not finite for t = 0. The same bits on every device.
struct AdamWRatesScalars {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
};
extern const Op<NoAttributes, AdamWRatesScalars> kAdamWRates;  // (t)

// AdamW with decoupled weight decay, with r from kAdamWRates.
// Source: Loshchilov & Hutter, "Decoupled weight decay regularization", arXiv 1711.05101; in the order of
//         PyTorch: p *= 1 - lr * weight_decay; m, v = moments; bias corrected; p -= lr * m / (sqrt(v) + eps).
struct AdamWScalars {
  double lr = 1e-3;  // of the decay; the step's is in r
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};
extern const Op<NoAttributes, AdamWScalars> kAdamWUpdate;  // (p, m, v, g, s, r)

// g += weight_decay * p; p -= lr * g.
struct SgdScalars {
  double lr = 1e-3;
  double weight_decay = 0;
};
extern const Op<NoAttributes, SgdScalars> kSgdUpdate;  // (p, g, s)

// g += weight_decay * p; b = momentum * b + g; p -= lr * b.
struct MomentumScalars {
  double lr = 1e-3;
  double momentum = 0.9;
  double weight_decay = 0;
};
extern const Op<NoAttributes, MomentumScalars> kMomentumUpdate;  // (p, b, g, s)

// SGD with Nesterov's momentum: g += weight_decay * p; b = momentum * b + g; p -= lr * (g + momentum * b).
extern const Op<NoAttributes, MomentumScalars> kNesterovUpdate;  // (p, b, g, s)

// c = beta1 * m + (1 - beta1) * g; p = p * (1 - lr * weight_decay) - lr * sign(c); m = beta2 * m + (1 - beta2) * g.
// Source: Chen et al., "Symbolic discovery of optimization algorithms", arXiv 2302.06675.
struct LionScalars {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};
extern const Op<NoAttributes, LionScalars> kLionUpdate;  // (p, m, g, s)

// m += (x - m) * w, where the weight w, a scalar of f32 or f64, is finite: running averages, of which w may be made
// on the device.
extern const Op<> kLerpUpdate;  // (m, x, w)

// The s that makes a gradient of squared norm x have at most norm max_norm: min(1, max_norm / (sqrt(x) +
// 1e-6)). NaN if x is not finite.
struct ClipScalars {
  double max_norm = 1;
};
extern const Op<NoAttributes, ClipScalars> kClipFactor;

// acc += x, rounding to acc's dtype; x may be of another floating dtype. acc must be referenced by nobody
// else.
extern const Op<> kAccumulate;

// (x0 + x1) + x2 ..., any number of floating operands of one type, with the bits of an Add after the other:
// what the squares of a norm are added up by.
extern const Op<> kAddAll;

}  // namespace weft

#endif  // WEFT_OPS_OPTIMIZER_OPTIMIZER_UPDATE_H_
