#ifndef WEFT_OPS_CPU_NORMALIZATION_NORM_ROWS_H_
#define WEFT_OPS_CPU_NORMALIZATION_NORM_ROWS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "ops/normalization/norm_tensors.h"
#include "ops/op/kernel_call.h"
#include "ops/op/op.h"

namespace weft {

// The kernels of layer_norm and rms_norm, which lacks mean and b. Outputs that are undefined are not computed.
// Errors name `op`.

// y = (x - mean) * rstd * w + b, and the statistics of the rows, which are whole. The statistics take two
// passes over a row in cache: E[x^2] - mean^2 would cancel.
void RunNormForward(const NormTensors& norm, double eps, absl::string_view op, KernelContext& context);

// y from given statistics.
void RunNormApply(const NormTensors& norm, absl::string_view op, KernelContext& context);

// dx, dw and db from given statistics, in one pass over x and dy. dw and db sum the rows in blocks cut by the
// shape alone and add the blocks in order. `w` may be undefined if dx is.
void RunNormBackward(const NormTensors& norm, absl::string_view op, KernelContext& context);

// g_mean and gn_mean: the means over the global d of g = dy * w and of g * (x - mean) * rstd.
void RunNormGradMeans(const NormTensors& norm, int64_t global_columns, absl::string_view op,
                      KernelContext& context);

// dx from those.
void RunNormGradApply(const NormTensors& norm, absl::string_view op, KernelContext& context);

// The same as kernels, of the op that is named: what layer_norm.cc and rms_norm.cc register.
template <const auto& op, class A>
void NormForwardKernel(const KernelCall<A, NoScalars>& call) {
  RunNormForward(NormTensorsOf(op, call), call.attributes().eps, op.name(), call.context);
}
template <const Op<>& op>
void NormApplyKernel(const KernelCall<NoAttributes, NoScalars>& call) {
  RunNormApply(NormTensorsOf(op, call), op.name(), call.context);
}
template <const Op<>& op>
void NormBackwardKernel(const KernelCall<NoAttributes, NoScalars>& call) {
  RunNormBackward(NormTensorsOf(op, call), op.name(), call.context);
}
template <const Op<>& op>
void NormGradMeansKernel(const KernelCall<NoAttributes, NoScalars>& call) {
  RunNormGradMeans(NormTensorsOf(op, call), call.input_boxes[1].global_shape[0], op.name(), call.context);
}
template <const Op<>& op>
void NormGradApplyKernel(const KernelCall<NoAttributes, NoScalars>& call) {
  RunNormGradApply(NormTensorsOf(op, call), op.name(), call.context);
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_NORMALIZATION_NORM_ROWS_H_
