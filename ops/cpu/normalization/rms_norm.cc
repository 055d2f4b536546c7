#include "ops/normalization/rms_norm.h"

#include "ops/cpu/normalization/norm_rows.h"
#include "ops/normalization/rms_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

void RmsNorm(const KernelCall<RmsNormAttributes, NoScalars>& call) {
  RunNormForward({.x = call.inputs[0],
                  .w = call.inputs[1],
                  .b = {},
                  .y = call.outputs[0],
                  .mean = {},
                  .rstd = call.outputs[1],
                  .eps = call.attributes().eps},
                 "rms_norm", call.context);
}

void RmsNormApply(const Call& call) {
  RunNormApply({.x = call.inputs[0],
                .w = call.inputs[1],
                .b = {},
                .mean = {},
                .rstd = call.inputs[2],
                .y = call.outputs[0]},
               "rms_norm_apply", call.context);
}

void RmsNormGrad(const Call& call) {
  RunNormBackward({.x = call.inputs[0],
                   .w = call.inputs[1],
                   .mean = {},
                   .rstd = call.inputs[2],
                   .dy = call.inputs[3],
                   .dx = call.outputs[0],
                   .dw = call.outputs[1],
                   .db = {}},
                  "rms_norm_grad", call.context);
}

void RmsNormWeightGrad(const Call& call) {
  RunNormBackward({.x = call.inputs[0],
                   .w = {},
                   .mean = {},
                   .rstd = call.inputs[1],
                   .dy = call.inputs[2],
                   .dx = {},
                   .dw = call.outputs[0],
                   .db = {}},
                  "rms_norm_weight_grad", call.context);
}

void RmsNormGradMean(const Call& call) {
  RunNormGradMeans({.x = call.inputs[0],
                    .w = call.inputs[1],
                    .mean = {},
                    .rstd = call.inputs[2],
                    .dy = call.inputs[3],
                    .global_columns = call.input_boxes[1].global_shape[0],
                    .g_mean = {},
                    .gn_mean = call.outputs[0]},
                   "rms_norm_grad_mean", call.context);
}

void RmsNormGradApply(const Call& call) {
  RunNormGradApply({.x = call.inputs[0],
                    .w = call.inputs[1],
                    .mean = {},
                    .rstd = call.inputs[2],
                    .dy = call.inputs[3],
                    .g_mean = {},
                    .gn_mean = call.inputs[4],
                    .dx = call.outputs[0]},
                   "rms_norm_grad_apply", call.context);
}

const RegisterKernel kRegister(kRmsNorm, DeviceType::kCpu, RmsNorm);
const RegisterKernel kRegisterApply(kRmsNormApply, DeviceType::kCpu, RmsNormApply);
const RegisterKernel kRegisterGrad(kRmsNormGrad, DeviceType::kCpu, RmsNormGrad);
const RegisterKernel kRegisterWeightGrad(kRmsNormWeightGrad, DeviceType::kCpu, RmsNormWeightGrad);
const RegisterKernel kRegisterGradMean(kRmsNormGradMean, DeviceType::kCpu, RmsNormGradMean);
const RegisterKernel kRegisterGradApply(kRmsNormGradApply, DeviceType::kCpu, RmsNormGradApply);

}  // namespace
}  // namespace weft
