#ifndef WEFT_OPS_NORMALIZATION_RMS_NORM_GRAD_H_
#define WEFT_OPS_NORMALIZATION_RMS_NORM_GRAD_H_

#include "ops/op/op.h"

namespace weft {

// The backward of rms_norm. With n = x * rstd and g = dy * w:
//   dx = rstd * (g - n * mean(g * n)),  dw = sum over rows of dy * n.
// dw is Partial where rows are split, and summed in an order that follows from the shape alone.
//
// x w rstd dy -> dx dw, in one pass over x and dy. A split d is decomposed to the three ops below.
extern const Op<> kRmsNormGrad;

// x rstd dy -> dw.
extern const Op<> kRmsNormWeightGrad;
// x w rstd dy -> gn_mean [...]: the mean of g * n. Partial where d is split.
extern const Op<> kRmsNormGradMean;
// x w rstd dy gn_mean -> dx.
extern const Op<> kRmsNormGradApply;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_RMS_NORM_GRAD_H_
