#include "ops/cuda/normalization/norm_passes.h"
#include "ops/normalization/rms_norm.h"
#include "ops/normalization/rms_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

const RegisterKernel kRegister(kRmsNorm, DeviceType::kCuda, NormForwardKernel<kRmsNorm>);
const RegisterKernel kRegisterParts[] = {
    {kRmsNormApply, DeviceType::kCuda, NormApplyKernel<kRmsNormApply>},
    {kRmsNormGrad, DeviceType::kCuda, NormBackwardKernel<kRmsNormGrad>},
    {kRmsNormWeightGrad, DeviceType::kCuda, NormBackwardKernel<kRmsNormWeightGrad>},
    {kRmsNormGradMean, DeviceType::kCuda, NormGradMeansKernel<kRmsNormGradMean>},
    {kRmsNormGradApply, DeviceType::kCuda, NormGradApplyKernel<kRmsNormGradApply>},
};

}  // namespace
}  // namespace weft
