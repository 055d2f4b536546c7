#ifndef WEFT_OPS_CUDA_NORMALIZATION_NORM_PASSES_H_
#define WEFT_OPS_CUDA_NORMALIZATION_NORM_PASSES_H_

#include <cstdint>

#include "ops/normalization/norm_tensors.h"
#include "ops/op/kernel_call.h"
#include "ops/op/op.h"

namespace weft {

// The kernels of layer_norm and rms_norm, which lacks mean and b. Outputs that are undefined are not computed.

// y = (x - mean) * rstd * w + b, and the statistics of the rows, which are whole. The statistics take two
// passes over a row, held in registers where it fits: E[x^2] - mean^2 would cancel.
void NormForwardOnGpu(const NormTensors& norm, double eps, const KernelCallBase& call);

// y from given statistics.
void NormApplyOnGpu(const NormTensors& norm, const KernelCallBase& call);

// dx, dw and db from given statistics; where rows fit in registers, in one pass over x and dy. dw and db sum
// the rows in blocks cut by the shape alone and add the blocks in order. `w` may be undefined if dx is.
void NormBackwardOnGpu(const NormTensors& norm, const KernelCallBase& call);

// g_mean (unless undefined) and gn_mean: the means over the global d of g = dy * w and of g * (x - mean) *
// rstd.
void NormGradMeansOnGpu(const NormTensors& norm, int64_t global_columns, const KernelCallBase& call);

// dx from those.
void NormGradApplyOnGpu(const NormTensors& norm, const KernelCallBase& call);

// The same as kernels, of the op that is named: what layer_norm.cu and rms_norm.cu register. Not of the CPU's
// names: one program has both.
template <const auto& op, class A>
void CudaNormForward(const KernelCall<A, NoScalars>& call) {
  NormForwardOnGpu(NormTensorsOf(op, call), call.attributes().eps, call);
}
template <const Op<>& op>
void CudaNormApply(const KernelCall<NoAttributes, NoScalars>& call) {
  NormApplyOnGpu(NormTensorsOf(op, call), call);
}
template <const Op<>& op>
void CudaNormBackward(const KernelCall<NoAttributes, NoScalars>& call) {
  NormBackwardOnGpu(NormTensorsOf(op, call), call);
}
template <const Op<>& op>
void CudaNormGradMeans(const KernelCall<NoAttributes, NoScalars>& call) {
  NormGradMeansOnGpu(NormTensorsOf(op, call), call.input_boxes[1].global_shape[0], call);
}
template <const Op<>& op>
void CudaNormGradApply(const KernelCall<NoAttributes, NoScalars>& call) {
  NormGradApplyOnGpu(NormTensorsOf(op, call), call);
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_NORMALIZATION_NORM_PASSES_H_
