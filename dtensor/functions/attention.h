#ifndef WEFT_DTENSOR_FUNCTIONS_ATTENTION_H_
#define WEFT_DTENSOR_FUNCTIONS_ATTENTION_H_

#include "dtensor/dtensor.h"

// Attention, without holding scores or probabilities.
namespace weft {

// q [b, s, h, e], k and v [b, s, g, e] with h a multiple of g -> [b, s, h, e]
// Layout: b may be split, and h where g equals it; a split sequence is gathered.
// Cost:   no communication but that.
// Errors: InvalidArgument for shapes that do not fit.
DTensor CausalAttention(const DTensor& q, const DTensor& k, const DTensor& v);
// The same of q, k and v in one tensor, as one projection makes them: qkv [b, s, 3, h, e] -> [b, s, h, e].
// Layout: b and h may be split.
// Errors: InvalidArgument for another shape.
DTensor PackedCausalAttention(const DTensor& qkv);

struct AttentionOptions {
  // bool (true is seen) or of q's dtype (added to the scores); broadcasts to the scores [b, h, s, t], as
  // NumPy does. Undefined: none.
  DTensor mask = {};
  // Query i of s sees the keys up to i + (t - s), so that the last query sees all.
  bool causal = false;
  // Of the scores; 0 stands for 1 / sqrt(e).
  double scale = 0;
  // Rate at which probabilities are zeroed while the rank state is training; keys as Dropout's.
  double dropout = 0;
};

// softmax(scale q k^T + mask) v, per head.
//
// Shape:  q [b, s, h, e], k and v [b, t, h, e] -> [b, s, h, e]; grouped queries as q [b, s, h, g, e] (scores
//         [b, h, g, s, t]) or [b, s, h*g, e] (scores [b, h*g, s, t]). Queries that see no key give 0.
// Layout: b, h and g may be split, but h*g as one dim of grouped queries may not; the random bits of dropout are those of the
//         whole.
// Cost:   no communication where b, h and g alone are split; s, t and e are gathered.
// Errors: InvalidArgument for shapes that do not fit, a mask that does not broadcast, or a rate outside [0, 1).
DTensor ScaledDotProductAttention(const DTensor& q, const DTensor& k, const DTensor& v,
                                  const AttentionOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_ATTENTION_H_
