// What finishes the statistics of a norm that is split: the reciprocal of the standard deviation.

#ifndef WEFT_OPS_NORMALIZATION_NORM_RSTD_H_
#define WEFT_OPS_NORMALIZATION_NORM_RSTD_H_

#include "ops/op/op.h"

namespace weft {

struct NormRstdAttributes {
  double eps = 1e-5;

  bool operator==(const NormRstdAttributes&) const = default;
};

// rstd = 1 / sqrt(variance + eps), elementwise, f32 or f64: a step of the decompositions of norms. Not
// differentiable.
extern const Op<NormRstdAttributes> kNormRstd;

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_NORM_RSTD_H_
