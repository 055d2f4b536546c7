// Layer norm over the last dim.

#ifndef WEFT_OPS_NORMALIZATION_LAYER_NORM_H_
#define WEFT_OPS_NORMALIZATION_LAYER_NORM_H_

#include "ops/op/op.h"

namespace weft {

struct LayerNormAttributes {
  double eps = 1e-5;

  bool operator==(const LayerNormAttributes&) const = default;
};

// y = (x - mean) * rstd * w + b over the last dim, with mean = (sum x) / d, rstd = 1 / sqrt((sum (x -
// mean)^2) / d + eps).
//
// Shape:  x [..., d], w [d], b [d], one floating type -> y [..., d], mean [...], rstd [...] (f64 for f64,
//         else f32).
// Layout: a split d is decomposed: mean and variance are all-reduced (two numbers per row), x is not
//         gathered.
extern const Op<LayerNormAttributes> kLayerNorm;

// x w b mean rstd -> y: the finishing op of the decomposition, with d free to split.
extern const Op<> kLayerNormApply;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_LAYER_NORM_H_
