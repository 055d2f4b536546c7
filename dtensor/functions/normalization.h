#ifndef WEFT_DTENSOR_FUNCTIONS_NORMALIZATION_H_
#define WEFT_DTENSOR_FUNCTIONS_NORMALIZATION_H_

#include <cstdint>

#include "dtensor/dtensor.h"

// Norms: over the last dim, over the batch, over groups of channels. Statistics are those of the global tensor
// wherever x is split: small all-reduces, x is not gathered.
//
// Cost:   where elements that share a statistic are split, an all-reduce of two numbers for each (for RMS norm one), and as many in
//         backward.
// Errors: InvalidArgument for shapes that do not fit, operands that are not of one floating dtype, or a negative eps.
namespace weft {

// Over the last dim: x [..., d], weight [d], bias [d].
DTensor LayerNormalize(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps = 1e-5);
DTensor RmsNormalize(const DTensor& x, const DTensor& weight, double eps = 1e-5);

// The others take x [n, c, ...] with a weight [c] and a bias [c], either of which may be undefined (1, 0).

// What training needs of a batch norm: y, and the mean and (biased) variance of each channel, f64 for f64 and
// else f32, without history.
struct BatchNormResult {
  DTensor y;
  DTensor mean;
  DTensor variance;
};
BatchNormResult BatchNormalize(const DTensor& x, const DTensor& weight = {}, const DTensor& bias = {},
                               double eps = 1e-5);

// The same by given statistics, as in inference; differentiable in all operands.
// Cost:   no communication in forward.
DTensor BatchNormalizeBy(const DTensor& x, const DTensor& mean, const DTensor& variance,
                         const DTensor& weight = {}, const DTensor& bias = {}, double eps = 1e-5);

// Averages over batches, for inference. Tensors are immutable: the caller keeps what Updated returns.
struct RunningStatistics {
  DTensor mean;
  DTensor variance;

  // (1 - momentum) of these and `momentum` of the batch's, whose variance counts as that of a sample (n / (n
  // - 1) of the biased one), as PyTorch's. Records nothing on the tape.
  RunningStatistics Updated(const BatchNormResult& batch, double momentum = 0.1) const;
};

// Each image's channels in `groups` groups, a mean and variance for each; as many groups as channels make it
// the instance norm.
// Errors: InvalidArgument if groups do not divide c.
DTensor GroupNormalize(const DTensor& x, int64_t groups, const DTensor& weight = {}, const DTensor& bias = {},
                       double eps = 1e-5);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_NORMALIZATION_H_
