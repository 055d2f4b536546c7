#ifndef WEFT_OPS_NORMALIZATION_CHANNEL_NORM_H_
#define WEFT_OPS_NORMALIZATION_CHANNEL_NORM_H_

#include "ops/normalization/channel_types.h"
#include "ops/op/op.h"

namespace weft {

// y = (x - mean) / sqrt(variance + eps) * w + b, with w and b by channel, and mean and variance = (sum (x -
// mean)^2) / count over all the elements that share them; 0 where there are none.
//
// Shape:  x [n, c, ...], w [c], b [c], one floating type -> y as x; mean and variance [c] of batch norm, [n,
//         groups] of group norm (f64 for f64, else f32). No gradient may reach them.
// Layout: batch norm passes a split c, group norm a split n; any other split is decomposed: the statistics
//         are all-reduced (two numbers each), x is not gathered.
// Errors: InvalidArgument for shapes that do not fit, groups that do not divide c, or a negative eps.
// Source: Ioffe & Szegedy, arXiv 1502.03167; Wu & He, "Group Normalization", arXiv 1803.08494.
extern const Op<ChannelNormAttributes> kChannelNorm;

// Steps of its decomposition. The first two are Partial where elements that share a statistic are split, and
// not differentiable; the last, y from given statistics, is inference as well, differentiable in all
// operands. x -> mean.
extern const Op<ChannelNormAttributes> kChannelMean;
// x mean -> variance.
extern const Op<ChannelNormAttributes> kChannelVariance;
// x w b mean variance -> y.
extern const Op<ChannelNormAttributes> kChannelNormApply;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_CHANNEL_NORM_H_
