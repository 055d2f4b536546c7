#ifndef WEFT_OPS_CPU_NORMALIZATION_NORM_ROWS_H_
#define WEFT_OPS_CPU_NORMALIZATION_NORM_ROWS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The kernels of layer_norm and rms_norm: rms_norm is the case without mean and b (undefined tensors, a mean
// of 0). x and dy are [..., d] of any floating type and strides, w, b, dw, db [d], statistics [...] in the
// compute type. Outputs that are undefined are not computed.

// y = (x - mean) * rstd * w + b, and the statistics of the rows, which are whole. The statistics take two
// passes over a row in cache: E[x^2] - mean^2 would cancel.
struct NormForward {
  Tensor x, w, b;
  Tensor y, mean, rstd;
  double eps = 0;
};
void RunNormForward(const NormForward& norm, absl::string_view op, KernelContext& context);

// y from given statistics.
struct NormApply {
  Tensor x, w, b, mean, rstd;
  Tensor y;
};
void RunNormApply(const NormApply& norm, absl::string_view op, KernelContext& context);

// dx, dw and db from given statistics, in one pass over x and dy. dw and db sum the rows in blocks cut by the
// shape alone and add the blocks in order. `w` may be undefined if dx is.
struct NormBackward {
  Tensor x, w, mean, rstd, dy;
  Tensor dx, dw, db;
};
void RunNormBackward(const NormBackward& norm, absl::string_view op, KernelContext& context);

// The means over the global d of g = dy * w and of g * (x - mean) * rstd.
struct NormGradMeans {
  Tensor x, w, mean, rstd, dy;
  int64_t global_columns = 0;
  Tensor g_mean, gn_mean;
};
void RunNormGradMeans(const NormGradMeans& norm, absl::string_view op, KernelContext& context);

// dx from those.
struct NormGradApply {
  Tensor x, w, mean, rstd, dy, g_mean, gn_mean;
  Tensor dx;
};
void RunNormGradApply(const NormGradApply& norm, absl::string_view op, KernelContext& context);

}  // namespace weft

#endif  // WEFT_OPS_CPU_NORMALIZATION_NORM_ROWS_H_
