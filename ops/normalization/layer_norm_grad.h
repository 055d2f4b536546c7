#ifndef WEFT_OPS_NORMALIZATION_LAYER_NORM_GRAD_H_
#define WEFT_OPS_NORMALIZATION_LAYER_NORM_GRAD_H_

#include "ops/op/op.h"

namespace weft {

// The backward of layer_norm. With n = (x - mean) * rstd and g = dy * w:
//   dx = rstd * (g - mean g - n * mean(g * n)),  dw = sum over rows of dy * n,  db = sum over rows of dy.
// dw and db are Partial where rows are split, and summed in an order that follows from the shape alone.
//
// x w mean rstd dy -> dx dw db, in one pass over x and dy. A split d is decomposed to the three ops below.
extern const Op<> kLayerNormGrad;

// x mean rstd dy -> dw db.
extern const Op<> kLayerNormWeightGrad;
// x w mean rstd dy -> g_mean gn_mean [...]: the means of g and g * n. Partial where d is split.
extern const Op<> kLayerNormGradMeans;
// x w mean rstd dy g_mean gn_mean -> dx.
extern const Op<> kLayerNormGradApply;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_LAYER_NORM_GRAD_H_
