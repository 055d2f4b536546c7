#ifndef WEFT_OPS_NORMALIZATION_CHANNEL_NORM_GRAD_H_
#define WEFT_OPS_NORMALIZATION_CHANNEL_NORM_GRAD_H_

#include "ops/normalization/channel_types.h"
#include "ops/op/op.h"

namespace weft {

// The backward of channel_norm. With rstd = 1 / sqrt(variance + eps), h = (x - mean) * rstd and g = dy * w:
//   dx = rstd * (g - mean g - h * mean(g * h)),  dw = sum dy * h,  db = sum dy,
// where means run over the elements that share a statistic and sums over those of a channel.
//
// x w mean variance dy -> dx dw db. Splits of what shares a statistic are decomposed to the two ops below.
extern const Op<ChannelNormAttributes> kChannelNormGrad;

// x w mean variance dy -> dw db g_mean gh_mean, in one pass over x and dy. Partial where what they sum is
// split.
extern const Op<ChannelNormAttributes> kChannelNormGradSums;
// x w mean variance dy g_mean gh_mean -> dx.
extern const Op<ChannelNormAttributes> kChannelNormGradApply;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_CHANNEL_NORM_GRAD_H_
