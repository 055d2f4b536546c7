#include "ops/cuda/normalization/norm_passes.h"
#include "ops/normalization/layer_norm.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

const RegisterKernel kRegister(kLayerNorm, DeviceType::kCuda, CudaNormForward<kLayerNorm>);
const RegisterKernel kRegisterParts[] = {
    {kLayerNormApply, DeviceType::kCuda, CudaNormApply<kLayerNormApply>},
    {kLayerNormGrad, DeviceType::kCuda, CudaNormBackward<kLayerNormGrad>},
    {kLayerNormWeightGrad, DeviceType::kCuda, CudaNormBackward<kLayerNormWeightGrad>},
    {kLayerNormGradMeans, DeviceType::kCuda, CudaNormGradMeans<kLayerNormGradMeans>},
    {kLayerNormGradApply, DeviceType::kCuda, CudaNormGradApply<kLayerNormGradApply>},
};

}  // namespace
}  // namespace weft
