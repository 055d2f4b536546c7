#ifndef WEFT_OPS_ATTENTION_MASKED_ATTENTION_H_
#define WEFT_OPS_ATTENTION_MASKED_ATTENTION_H_

#include "ops/attention/attention.h"
#include "ops/creation/random.h"
#include "ops/op/op.h"

namespace weft {

// Attention with a mask and with dropout of the probabilities: y = dropout(softmax(scale q k^T + mask)) v per
// head, and lse as kAttention. As there, scores and probabilities are never held whole.
//
// Hide keys by a bool mask, or by -inf. A finite number, such as -1e9 or the lowest of the dtype, is added, which
// hides a key only from a query that sees another one. A query whose keys all have it sees all of them: y is about
// the mean of v, as PyTorch's, but the gradients that pass through the query are wrong. Backward makes the
// probabilities from differences of scores and lse, which have few digits left there. They are off by about
//
//   kernels                                          at -1e4   at -1e6   from -1e9 on
//   CPU; GPU, but for those of the next line          0.05%      3%      1 for each of t keys, in place of 1 / t
//   GPU: bf16 and f16, heads of <= 128 elements       0.2%      20%      any factor
//
// and in f64 not before -1e16. Those of the last line take a bf16 number below -2.36e38 for -inf, so that a query
// with no other sees no key.
//
// Shape:  q, k, v, y, lse as kAttention; mask [b, h, s, t] ([b, h, g, s, t] with q [b, s, h, g, e], [b, h*g,
//         s, t] with merged heads), each dim of it whole or of extent 1, which repeats. bool: true is seen;
//         else of q's dtype and added. A query that sees no key (all false or -inf) gives y = 0, lse = -inf
//         and no gradient.
// Layout: as kAttention; the mask is split where it does not repeat. Dropout: element (b, head, i, j) of the
//         whole [b, h, s, t] is kept by the random bits of its row-major index, as kDropout's, so that every
//         layout has the same; the key makes them again in backward.
// Errors: InvalidArgument as kAttention, for a mask that does not fit, or, from the kernel, a rate outside
//         [0, 1).
extern const Op<AttentionAttributes, DropoutScalars> kMaskedAttention;

// The gradients of q, k and v.
extern const Op<AttentionAttributes, DropoutScalars> kMaskedAttentionGrad;
// The gradient of an added mask, summed where it repeats: another pass over the scores, only where it is
// wanted.
extern const Op<AttentionAttributes, DropoutScalars> kMaskedAttentionMaskGrad;

}  // namespace weft

#endif  // WEFT_OPS_ATTENTION_MASKED_ATTENTION_H_
