// Scaled dot-product attention.

#ifndef WEFT_OPS_ATTENTION_ATTENTION_H_
#define WEFT_OPS_ATTENTION_ATTENTION_H_

#include <string>

#include "ops/op/op.h"

namespace weft {

struct AttentionAttributes {
  // Query i of s sees the keys up to i + (t - s): the last query sees all t of them.
  bool causal = false;
  // Factor of the scores; 0 stands for 1 / sqrt(e).
  double scale = 0;

  bool operator==(const AttentionAttributes&) const = default;
};

// y = softmax(scale q k^T) v per head, and lse = log sum exp of the scores, which backward reads (no gradient
// may reach it). The scores are never held whole: memory grows with s + t, not with s t.
//
// Shape:  one key head a query head   q [b, s, h, e]     k, v [b, t, h, e]  ->  y as q, lse [b, h, s]
//         grouped queries             q [b, s, h, g, e]  k, v [b, t, h, e]  ->  y as q, lse [b, h, g, s]
//         the same, heads merged      q [b, s, h*g, e]   k, v [b, t, h, e]  ->  y as q, lse [b, h*g, s]
//         lse is f64 for f64, else f32. Without keys (t = 0) y is 0 and lse is -inf.
// Layout: b, h and g may be split; merged heads may not: a piece of h*g does not say which keys it needs.
// Errors: InvalidArgument for shapes that do not fit, e = 0, or causal with more queries than keys.
// Kernels, and those of the gradient, write y, dq, dk and dv by any strides, the last 1: they may lie in a
// larger tensor (attention_of_parts.h).
// Source: Dao et al., FlashAttention-2, arXiv 2307.08691.
extern const Op<AttentionAttributes> kAttention;

// The gradients of q, k and v from those operands, the outputs of attention and dy. Scores are computed
// again.
extern const Op<AttentionAttributes> kAttentionGrad;

// The scale that `attributes` stand for, of heads with `e` elements.
double AttentionScale(const AttentionAttributes& attributes, int64_t e);

// What attention without and with a mask share.

// The factors of q (and y), of k (and v), and of lse.
struct AttentionFactors {
  const char* q;
  const char* k;
  const char* lse;
};
AttentionFactors AttentionFactorsOf(const TensorType& q, const TensorType& k);

TensorType AttentionLseType(const TensorType& q);

// Errors: InvalidArgument that starts with `op`, as above.
void RequireAttention(absl::string_view op, const TensorType& q, const TensorType& k, const TensorType& v,
                      const AttentionAttributes& attributes);

}  // namespace weft

#endif  // WEFT_OPS_ATTENTION_ATTENTION_H_
