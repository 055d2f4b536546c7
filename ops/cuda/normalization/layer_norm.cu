#include "ops/cuda/normalization/norm_passes.h"
#include "ops/normalization/layer_norm.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

void LayerNorm(const KernelCall<LayerNormAttributes, NoScalars>& call) {
  NormOnGpu norm;
  norm.x = call.inputs[0];
  norm.w = call.inputs[1];
  norm.b = call.inputs[2];
  norm.y = call.outputs[0];
  norm.mean = call.outputs[1];
  norm.rstd = call.outputs[2];
  NormForwardOnGpu(norm, call.attributes().eps, call);
}

void LayerNormApply(const Call& call) {
  NormOnGpu norm;
  norm.x = call.inputs[0];
  norm.w = call.inputs[1];
  norm.b = call.inputs[2];
  norm.mean = call.inputs[3];
  norm.rstd = call.inputs[4];
  norm.y = call.outputs[0];
  NormApplyOnGpu(norm, call);
}

// The operands x w mean rstd dy, which begin those of three ops.
NormOnGpu GradOperands(const Call& call) {
  NormOnGpu norm;
  norm.x = call.inputs[0];
  norm.w = call.inputs[1];
  norm.mean = call.inputs[2];
  norm.rstd = call.inputs[3];
  norm.dy = call.inputs[4];
  return norm;
}

void LayerNormGrad(const Call& call) {
  NormOnGpu norm = GradOperands(call);
  norm.dx = call.outputs[0];
  norm.dw = call.outputs[1];
  norm.db = call.outputs[2];
  NormBackwardOnGpu(norm, call);
}

void LayerNormWeightGrad(const Call& call) {
  NormOnGpu norm;
  norm.x = call.inputs[0];
  norm.mean = call.inputs[1];
  norm.rstd = call.inputs[2];
  norm.dy = call.inputs[3];
  norm.dw = call.outputs[0];
  norm.db = call.outputs[1];
  NormBackwardOnGpu(norm, call);
}

void LayerNormGradMeans(const Call& call) {
  NormOnGpu norm = GradOperands(call);
  norm.g_mean = call.outputs[0];
  norm.gn_mean = call.outputs[1];
  NormGradMeansOnGpu(norm, call.input_boxes[1].global_shape[0], call);
}

void LayerNormGradApply(const Call& call) {
  NormOnGpu norm = GradOperands(call);
  norm.g_mean = call.inputs[5];
  norm.gn_mean = call.inputs[6];
  norm.dx = call.outputs[0];
  NormGradApplyOnGpu(norm, call);
}

const RegisterKernel kRegister(kLayerNorm, DeviceType::kCuda, LayerNorm);
const RegisterKernel kRegisterApply(kLayerNormApply, DeviceType::kCuda, LayerNormApply);
const RegisterKernel kRegisterGrad(kLayerNormGrad, DeviceType::kCuda, LayerNormGrad);
const RegisterKernel kRegisterWeightGrad(kLayerNormWeightGrad, DeviceType::kCuda, LayerNormWeightGrad);
const RegisterKernel kRegisterGradMeans(kLayerNormGradMeans, DeviceType::kCuda, LayerNormGradMeans);
const RegisterKernel kRegisterGradApply(kLayerNormGradApply, DeviceType::kCuda, LayerNormGradApply);

}  // namespace
}  // namespace weft
