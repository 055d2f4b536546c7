#include "ops/cuda/normalization/norm_passes.h"
#include "ops/normalization/rms_norm.h"
#include "ops/normalization/rms_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

const RegisterKernel kRegister(kRmsNorm, DeviceType::kCuda, CudaNormForward<kRmsNorm>);
const RegisterKernel kRegisterParts[] = {
    {kRmsNormApply, DeviceType::kCuda, CudaNormApply<kRmsNormApply>},
    {kRmsNormGrad, DeviceType::kCuda, CudaNormBackward<kRmsNormGrad>},
    {kRmsNormWeightGrad, DeviceType::kCuda, CudaNormBackward<kRmsNormWeightGrad>},
    {kRmsNormGradMean, DeviceType::kCuda, CudaNormGradMeans<kRmsNormGradMean>},
    {kRmsNormGradApply, DeviceType::kCuda, CudaNormGradApply<kRmsNormGradApply>},
};

}  // namespace
}  // namespace weft
