#include "ops/attention/attention_of_parts.h"
#include "ops/attention/packed_attention.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

const RegisterKernel kRegister[] = {
    {kPackedAttention, DeviceType::kCuda, AttentionOfParts},
    {kPackedAttentionGrad, DeviceType::kCuda, AttentionGradOfParts},
};

}  // namespace
}  // namespace weft
