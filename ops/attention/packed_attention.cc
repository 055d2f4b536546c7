#include "ops/attention/packed_attention.h"

#include "ops/declare/row_op.h"

namespace weft {
namespace {

// Of q, k and v, each.
TensorType PartType(absl::string_view op, const TensorType& qkv) {
  WEFT_REQUIRE(IsFloating(qkv.dtype) && qkv.ndim() == 5 && qkv.shape[2] == 3, op,
               ": expected qkv [b, s, 3, h, e], floating; got ", qkv.ToString());
  WEFT_REQUIRE(qkv.shape[4] > 0, op, ": heads must have elements, got qkv ", qkv.ToString());
  TensorType part = qkv;
  part.shape.Remove(2);
  return part;
}

TensorTypes InferNamed(absl::string_view op, const TensorType& qkv, const AttentionAttributes& a) {
  const TensorType part = PartType(op, qkv);
  RequireAttention(op, part, part, part, a);
  return {part, AttentionLseType(part)};
}

TensorTypes Infer(absl::Span<const TensorType> operands, const AttentionAttributes& a) {
  return InferNamed("packed_attention", operands[0], a);
}

TensorTypes InferGrad(absl::Span<const TensorType> operands, const AttentionAttributes& a) {
  constexpr absl::string_view kOp = "packed_attention_grad";
  const TensorTypes outputs = InferNamed(kOp, operands[0], a);
  WEFT_REQUIRE(operands[1] == outputs[0] && operands[2] == outputs[1] && operands[3] == outputs[0], kOp,
               ": expected y and dy ", outputs[0].ToString(), ", lse ", outputs[1].ToString(), "; got y ",
               operands[1].ToString(), ", lse ", operands[2].ToString(), ", dy ", operands[3].ToString());
  return {operands[0]};
}

std::string Rule(absl::Span<const TensorType>, const AttentionAttributes&) {
  return "b s! c! h e! -> b s! h e!, b h s!";
}

std::string RuleGrad(absl::Span<const TensorType>, const AttentionAttributes&) {
  return "b s! c! h e!, b s! h e!, b h s!, b s! h e! -> b s! c! h e!";
}

void Backward(GradContext<AttentionAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad(0);
  RequireNoGradient("packed_attention", "lse", ctx.grad(1).defined());
  if (!dy.defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.Emit(kPackedAttentionGrad, {ctx.saved("qkv"), ctx.saved("y"), ctx.saved("lse"), dy},
                          ctx.attributes()));
}

std::vector<Sample<AttentionAttributes>> Samples() {
  return {{{{{DType::kF32, {2, 3, 3, 2, 4}}}}, {.causal = true}},
          {{{{DType::kF32, {3, 5, 3, 1, 3}}}}, {.causal = false, .scale = 0.7}}};
}

std::vector<Sample<AttentionAttributes>> GradSamples() {
  std::vector<Sample<AttentionAttributes>> samples;
  for (const Sample<AttentionAttributes>& forward : Samples()) {
    const TensorTypes outputs = Infer({{forward.operands[0].type}}, forward.attributes);
    samples.push_back({{forward.operands[0], {outputs[0]}, {outputs[1]}, {outputs[0]}}, forward.attributes});
  }
  return samples;
}

}  // namespace

constinit const Op<AttentionAttributes> kPackedAttention = {{
    .name = "packed_attention",
    .operands = "qkv",
    .outputs = "y lse",
    .infer = Infer,
    .rule = Rule,
    .saves = "qkv y lse",
    .backward = Backward,
    .samples = Samples,
}};

// Linear in dy, since y and lse are taken as given.
constinit const Op<AttentionAttributes> kPackedAttentionGrad = {{
    .name = "packed_attention_grad",
    .operands = "qkv y lse dy",
    .outputs = "dqkv",
    .infer = InferGrad,
    .rule = RuleGrad,
    .linear = "{dy}",
    .samples = GradSamples,
}};

}  // namespace weft
