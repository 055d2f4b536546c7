#include "ops/attention_of_parts.h"
#include "ops/kernel.h"
#include "ops/packed_attention.h"

namespace weft {
namespace {

const RegisterKernel kRegister[] = {
    {kPackedAttention, DeviceType::kCuda, AttentionOfParts},
    {kPackedAttentionGrad, DeviceType::kCuda, AttentionGradOfParts},
};

}  // namespace
}  // namespace weft
