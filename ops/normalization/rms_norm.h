// RMS norm over the last dim.

#ifndef WEFT_OPS_NORMALIZATION_RMS_NORM_H_
#define WEFT_OPS_NORMALIZATION_RMS_NORM_H_

#include "ops/op/op.h"

namespace weft {

struct RmsNormAttributes {
  double eps = 1e-5;

  bool operator==(const RmsNormAttributes&) const = default;
};

// y = x * rstd * w over the last dim, with rstd = 1 / sqrt((sum x^2) / d + eps).
//
// Shape:  x [..., d], w [d], one floating type -> y [..., d], rstd [...] (f64 for f64, else f32). No gradient
//         may reach rstd.
// Layout: a split d is decomposed: one number per row is all-reduced, x is not gathered.
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467.
extern const Op<RmsNormAttributes> kRmsNorm;

// x w rstd -> y: the finishing op of the decomposition, with d free to split.
extern const Op<> kRmsNormApply;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_RMS_NORM_H_
