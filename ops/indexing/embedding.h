#ifndef WEFT_OPS_INDEXING_EMBEDDING_H_
#define WEFT_OPS_INDEXING_EMBEDDING_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// y[..., :] = table[tokens[...], :].
//
// Shape:  tokens [...] i32 or i64, table [v, d] floating -> y [..., d].
// Layout: where v is split, the owner of a row computes it and the others give zero: Partial(sum).
// Errors: InvalidArgument, from the kernel, naming the first token outside [0, v) and its global position; v
//         is the global vocabulary, also where the table is split.
extern const Op<> kEmbedding;

struct EmbeddingGradAttributes {
  int64_t vocabulary = 0;

  bool operator==(const EmbeddingGradAttributes&) const = default;
};

// tokens dy -> dtable [vocabulary, d]: row t is the sum of dy over the positions of token t, in their order.
// Partial where positions are split; a rank that holds a range of the vocabulary makes only that (see
// GradContext::EmitLike).
extern const Op<EmbeddingGradAttributes> kEmbeddingGrad;

}  // namespace weft

#endif  // WEFT_OPS_INDEXING_EMBEDDING_H_
