#include "ops/normalization/rms_norm.h"

#include "ops/cpu/normalization/norm_rows.h"
#include "ops/normalization/rms_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

const RegisterKernel kRegister(kRmsNorm, DeviceType::kCpu, NormForwardKernel<kRmsNorm>);
const RegisterKernel kRegisterParts[] = {
    {kRmsNormApply, DeviceType::kCpu, NormApplyKernel<kRmsNormApply>},
    {kRmsNormGrad, DeviceType::kCpu, NormBackwardKernel<kRmsNormGrad>},
    {kRmsNormWeightGrad, DeviceType::kCpu, NormBackwardKernel<kRmsNormWeightGrad>},
    {kRmsNormGradMean, DeviceType::kCpu, NormGradMeansKernel<kRmsNormGradMean>},
    {kRmsNormGradApply, DeviceType::kCpu, NormGradApplyKernel<kRmsNormGradApply>},
};

}  // namespace
}  // namespace weft
