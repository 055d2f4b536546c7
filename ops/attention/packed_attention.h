#ifndef WEFT_OPS_ATTENTION_PACKED_ATTENTION_H_
#define WEFT_OPS_ATTENTION_PACKED_ATTENTION_H_

#include "ops/attention/attention.h"

namespace weft {

// kAttention of the q, k and v that lie in one tensor, as one projection makes them. In one op, so that their
// gradients are written where they lie, and not joined after. (flash-attn calls it qkvpacked.)
//
// Shape:  qkv [b, s, 3, h, e] -> y [b, s, h, e], lse [b, h, s].
// Layout: b and h may be split.
// Errors: InvalidArgument for another shape, or e = 0.
extern const Op<AttentionAttributes> kPackedAttention;

// The gradient of qkv from it, the outputs of packed attention and dy.
extern const Op<AttentionAttributes> kPackedAttentionGrad;

}  // namespace weft

#endif  // WEFT_OPS_ATTENTION_PACKED_ATTENTION_H_
