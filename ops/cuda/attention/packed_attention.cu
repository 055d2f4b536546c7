#include "ops/attention/attention_of_parts.h"
#include "ops/attention/packed_attention.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// The kernels of attention take heads of any strides, so the parts of the packed tensor need no copies: the
// same function serves both devices.
const RegisterKernel kRegister[] = {
    {kPackedAttention, DeviceType::kCuda, AttentionOfParts},
    {kPackedAttentionGrad, DeviceType::kCuda, AttentionGradOfParts},
};

}  // namespace
}  // namespace weft
