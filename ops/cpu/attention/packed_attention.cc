#include "ops/attention/packed_attention.h"

#include "ops/attention/attention_of_parts.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

const RegisterKernel kRegister[] = {
    {kPackedAttention, DeviceType::kCpu, AttentionOfParts},
    {kPackedAttentionGrad, DeviceType::kCpu, AttentionGradOfParts},
};

}  // namespace
}  // namespace weft
