#include "ops/cuda/normalization/norm_passes.h"
#include "ops/normalization/rms_norm.h"
#include "ops/normalization/rms_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

void RmsNorm(const KernelCall<RmsNormAttributes, NoScalars>& call) {
  NormOnGpu norm;
  norm.x = call.inputs[0];
  norm.w = call.inputs[1];
  norm.y = call.outputs[0];
  norm.rstd = call.outputs[1];
  NormForwardOnGpu(norm, call.attributes().eps, call);
}

void RmsNormApply(const Call& call) {
  NormOnGpu norm;
  norm.x = call.inputs[0];
  norm.w = call.inputs[1];
  norm.rstd = call.inputs[2];
  norm.y = call.outputs[0];
  NormApplyOnGpu(norm, call);
}

// The operands x w rstd dy, which begin those of three ops.
NormOnGpu GradOperands(const Call& call) {
  NormOnGpu norm;
  norm.x = call.inputs[0];
  norm.w = call.inputs[1];
  norm.rstd = call.inputs[2];
  norm.dy = call.inputs[3];
  return norm;
}

void RmsNormGrad(const Call& call) {
  NormOnGpu norm = GradOperands(call);
  norm.dx = call.outputs[0];
  norm.dw = call.outputs[1];
  NormBackwardOnGpu(norm, call);
}

void RmsNormWeightGrad(const Call& call) {
  NormOnGpu norm;
  norm.x = call.inputs[0];
  norm.rstd = call.inputs[1];
  norm.dy = call.inputs[2];
  norm.dw = call.outputs[0];
  NormBackwardOnGpu(norm, call);
}

void RmsNormGradMean(const Call& call) {
  NormOnGpu norm = GradOperands(call);
  norm.gn_mean = call.outputs[0];
  NormGradMeansOnGpu(norm, call.input_boxes[1].global_shape[0], call);
}

void RmsNormGradApply(const Call& call) {
  NormOnGpu norm = GradOperands(call);
  norm.gn_mean = call.inputs[4];
  norm.dx = call.outputs[0];
  NormGradApplyOnGpu(norm, call);
}

const RegisterKernel kRegister(kRmsNorm, DeviceType::kCuda, RmsNorm);
const RegisterKernel kRegisterApply(kRmsNormApply, DeviceType::kCuda, RmsNormApply);
const RegisterKernel kRegisterGrad(kRmsNormGrad, DeviceType::kCuda, RmsNormGrad);
const RegisterKernel kRegisterWeightGrad(kRmsNormWeightGrad, DeviceType::kCuda, RmsNormWeightGrad);
const RegisterKernel kRegisterGradMean(kRmsNormGradMean, DeviceType::kCuda, RmsNormGradMean);
const RegisterKernel kRegisterGradApply(kRmsNormGradApply, DeviceType::kCuda, RmsNormGradApply);

}  // namespace
}  // namespace weft
