#include "ops/cuda/normalization/norm_passes.h"
#include "ops/normalization/layer_norm.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

const RegisterKernel kRegister(kLayerNorm, DeviceType::kCuda, NormForwardKernel<kLayerNorm>);
const RegisterKernel kRegisterParts[] = {
    {kLayerNormApply, DeviceType::kCuda, NormApplyKernel<kLayerNormApply>},
    {kLayerNormGrad, DeviceType::kCuda, NormBackwardKernel<kLayerNormGrad>},
    {kLayerNormWeightGrad, DeviceType::kCuda, NormBackwardKernel<kLayerNormWeightGrad>},
    {kLayerNormGradMeans, DeviceType::kCuda, NormGradMeansKernel<kLayerNormGradMeans>},
    {kLayerNormGradApply, DeviceType::kCuda, NormGradApplyKernel<kLayerNormGradApply>},
};

}  // namespace
}  // namespace weft
