#ifndef WEFT_OPS_CUDA_NORMALIZATION_NORM_PASSES_H_
#define WEFT_OPS_CUDA_NORMALIZATION_NORM_PASSES_H_

#include <cstdint>

#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The kernels of layer_norm and rms_norm: rms_norm is the case without mean and b (undefined tensors, a mean
// of 0). x and dy are [..., d] of any floating type and strides, w, b, dw, db [d], statistics [...] in the
// compute type. Outputs that are undefined are not computed.
struct NormOnGpu {
  Tensor x, w, b, mean, rstd, dy, g_mean, gn_mean;  // read; mean and rstd written by NormForwardOnGpu
  Tensor y, dx, dw, db;                             // written
};

// y = (x - mean) * rstd * w + b, and the statistics of the rows, which are whole. The statistics take two
// passes over a row, held in registers where it fits: E[x^2] - mean^2 would cancel.
void NormForwardOnGpu(const NormOnGpu& norm, double eps, const KernelCallBase& call);

// y from given statistics.
void NormApplyOnGpu(const NormOnGpu& norm, const KernelCallBase& call);

// dx, dw and db from given statistics; where rows fit in registers, in one pass over x and dy. dw and db sum
// the rows in blocks cut by the shape alone and add the blocks in order. `w` may be undefined if dx is.
void NormBackwardOnGpu(const NormOnGpu& norm, const KernelCallBase& call);

// g_mean (unless undefined) and gn_mean: the means over the global d of g = dy * w and of g * (x - mean) *
// rstd.
void NormGradMeansOnGpu(const NormOnGpu& norm, int64_t global_columns, const KernelCallBase& call);

// dx from those.
void NormGradApplyOnGpu(const NormOnGpu& norm, const KernelCallBase& call);

}  // namespace weft

#endif  // WEFT_OPS_CUDA_NORMALIZATION_NORM_PASSES_H_
