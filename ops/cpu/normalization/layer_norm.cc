#include "ops/normalization/layer_norm.h"

#include "ops/cpu/normalization/norm_rows.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

void LayerNorm(const KernelCall<LayerNormAttributes, NoScalars>& call) {
  RunNormForward({.x = call.inputs[0],
                  .w = call.inputs[1],
                  .b = call.inputs[2],
                  .y = call.outputs[0],
                  .mean = call.outputs[1],
                  .rstd = call.outputs[2],
                  .eps = call.attributes().eps},
                 "layer_norm", call.context);
}

void LayerNormApply(const Call& call) {
  RunNormApply({.x = call.inputs[0],
                .w = call.inputs[1],
                .b = call.inputs[2],
                .mean = call.inputs[3],
                .rstd = call.inputs[4],
                .y = call.outputs[0]},
               "layer_norm_apply", call.context);
}

void LayerNormGrad(const Call& call) {
  RunNormBackward({.x = call.inputs[0],
                   .w = call.inputs[1],
                   .mean = call.inputs[2],
                   .rstd = call.inputs[3],
                   .dy = call.inputs[4],
                   .dx = call.outputs[0],
                   .dw = call.outputs[1],
                   .db = call.outputs[2]},
                  "layer_norm_grad", call.context);
}

void LayerNormWeightGrad(const Call& call) {
  RunNormBackward({.x = call.inputs[0],
                   .w = {},
                   .mean = call.inputs[1],
                   .rstd = call.inputs[2],
                   .dy = call.inputs[3],
                   .dx = {},
                   .dw = call.outputs[0],
                   .db = call.outputs[1]},
                  "layer_norm_weight_grad", call.context);
}

void LayerNormGradMeans(const Call& call) {
  RunNormGradMeans({.x = call.inputs[0],
                    .w = call.inputs[1],
                    .mean = call.inputs[2],
                    .rstd = call.inputs[3],
                    .dy = call.inputs[4],
                    .global_columns = call.input_boxes[1].global_shape[0],
                    .g_mean = call.outputs[0],
                    .gn_mean = call.outputs[1]},
                   "layer_norm_grad_means", call.context);
}

void LayerNormGradApply(const Call& call) {
  RunNormGradApply({.x = call.inputs[0],
                    .w = call.inputs[1],
                    .mean = call.inputs[2],
                    .rstd = call.inputs[3],
                    .dy = call.inputs[4],
                    .g_mean = call.inputs[5],
                    .gn_mean = call.inputs[6],
                    .dx = call.outputs[0]},
                   "layer_norm_grad_apply", call.context);
}

const RegisterKernel kRegister(kLayerNorm, DeviceType::kCpu, LayerNorm);
const RegisterKernel kRegisterApply(kLayerNormApply, DeviceType::kCpu, LayerNormApply);
const RegisterKernel kRegisterGrad(kLayerNormGrad, DeviceType::kCpu, LayerNormGrad);
const RegisterKernel kRegisterWeightGrad(kLayerNormWeightGrad, DeviceType::kCpu, LayerNormWeightGrad);
const RegisterKernel kRegisterGradMeans(kLayerNormGradMeans, DeviceType::kCpu, LayerNormGradMeans);
const RegisterKernel kRegisterGradApply(kLayerNormGradApply, DeviceType::kCpu, LayerNormGradApply);

}  // namespace
}  // namespace weft
