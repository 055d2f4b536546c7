// Softmax cross-entropy of class indices.

#ifndef WEFT_OPS_NORMALIZATION_CROSS_ENTROPY_H_
#define WEFT_OPS_NORMALIZATION_CROSS_ENTROPY_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

struct CrossEntropyAttributes {
  int64_t ignore_index = -100;  // positions with this target do not count
  double label_smoothing = 0;   // e: the target has probability 1 - e, and every class e / v on top

  bool operator==(const CrossEntropyAttributes&) const = default;
};

// Softmax cross-entropy of logits against classes, summed over the counted positions:
//   lse = log sum exp logits,  loss = sum (lse - (1 - e) logits[target] - e / v sum logits),  count = how
//   many.
// lse is 0 at positions that do not count. The mean is loss / count, by the global count, so that batch
// shards and microbatches weigh by tokens.
//
// Shape:  logits [..., v] floating, targets [...] i32 or i64 -> loss [], count [], lse [...] (f64 for f64,
//         else f32). count has no gradient.
// Cost:   one pass over the logits, which are not copied.
// Layout: a split v is decomposed: three numbers a position are all-reduced, logits are not gathered.
// Errors: InvalidArgument, from the kernel, naming the first target outside [0, v) that is not ignore_index.
// Source: for split v, Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3.
extern const Op<CrossEntropyAttributes> kCrossEntropy;

// logits targets lse dloss -> dlogits = (exp(logits - lse) - (1 - e) [target] - e / v) * dloss; zero where
// ignored.
extern const Op<CrossEntropyAttributes> kCrossEntropyGrad;

// The decomposition, v free to split. logits targets max -> sumexp picked [...]:
//   sumexp = sum exp(logits - max),  picked = (1 - e) logits[target] + e / v sum logits; both 0 where
//   ignored.
extern const Op<CrossEntropyAttributes> kCrossEntropyStatistics;
// targets max sumexp picked -> loss count lse.
extern const Op<CrossEntropyAttributes> kCrossEntropyFinish;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_CROSS_ENTROPY_H_
