#include "ops/normalization/layer_norm.h"

#include "ops/cpu/normalization/norm_rows.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

const RegisterKernel kRegister(kLayerNorm, DeviceType::kCpu, NormForwardKernel<kLayerNorm>);
const RegisterKernel kRegisterParts[] = {
    {kLayerNormApply, DeviceType::kCpu, NormApplyKernel<kLayerNormApply>},
    {kLayerNormGrad, DeviceType::kCpu, NormBackwardKernel<kLayerNormGrad>},
    {kLayerNormWeightGrad, DeviceType::kCpu, NormBackwardKernel<kLayerNormWeightGrad>},
    {kLayerNormGradMeans, DeviceType::kCpu, NormGradMeansKernel<kLayerNormGradMeans>},
    {kLayerNormGradApply, DeviceType::kCpu, NormGradApplyKernel<kLayerNormGradApply>},
};

}  // namespace
}  // namespace weft
