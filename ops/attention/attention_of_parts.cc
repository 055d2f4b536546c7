#include "ops/attention/attention_of_parts.h"

#include <array>

#include "ops/op/call_kernel.h"

namespace weft {
namespace {

constexpr int kPartDim = 2;  // of qkv [b, s, 3, h, e]

Tensor Part(const Tensor& qkv, int64_t part) { return qkv.Select(kPartDim, part); }

}  // namespace

void AttentionOfParts(const KernelCall<AttentionAttributes, NoScalars>& call) {
  const Tensor& qkv = call.inputs[0];
  const std::array<Tensor, 3> parts = {Part(qkv, 0), Part(qkv, 1), Part(qkv, 2)};
  CallKernelErased(kAttention, call.context, parts, call.outputs, call.erased_attributes,
                   call.erased_scalars);
}

void AttentionGradOfParts(const KernelCall<AttentionAttributes, NoScalars>& call) {
  const Tensor& qkv = call.inputs[0];
  const Tensor& dqkv = call.outputs[0];
  const std::array<Tensor, 6> inputs = {Part(qkv, 0),   Part(qkv, 1),   Part(qkv, 2),
                                        call.inputs[1], call.inputs[2], call.inputs[3]};
  std::array<Tensor, 3> outputs = {Part(dqkv, 0), Part(dqkv, 1), Part(dqkv, 2)};
  CallKernelErased(kAttentionGrad, call.context, inputs, absl::MakeSpan(outputs), call.erased_attributes,
                   call.erased_scalars);
}

}  // namespace weft
