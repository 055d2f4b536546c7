#include "ops/attention/masked_attention.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ops/declare/row_op.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;
using Attributes = AttentionAttributes;

// The shape of the scores: [b, h, s, t] or [b, h, g, s, t].
Shape ScoreShape(const TensorType& q, const TensorType& k) {
  Shape shape = AttentionLseType(q).shape;
  shape.push_back(k.shape[1]);
  return shape;
}

void RequireMask(absl::string_view op, const TensorType& q, const TensorType& k, const TensorType& mask) {
  const Shape scores = ScoreShape(q, k);
  bool fits = mask.ndim() == scores.ndim() && (mask.dtype == DType::kBool || mask.dtype == q.dtype);
  for (int dim = 0; fits && dim < scores.ndim(); ++dim) {
    fits = mask.shape[dim] == 1 || mask.shape[dim] == scores[dim];
  }
  WEFT_REQUIRE(fits, op, ": expected a mask of bool or ", DTypeName(q.dtype), " that broadcasts to ",
               scores.ToString(), ", got ", mask.ToString());
}

TensorTypes Infer(Operands operands, const Attributes& a) {
  RequireAttention("masked_attention", operands[0], operands[1], operands[2], a);
  RequireMask("masked_attention", operands[0], operands[1], operands[3]);
  return {operands[0], AttentionLseType(operands[0])};
}

// q k v mask y lse dy.
void RequireGradOperands(absl::string_view op, Operands operands, const Attributes& a) {
  const TensorType& q = operands[0];
  RequireAttention(op, q, operands[1], operands[2], a);
  RequireMask(op, q, operands[1], operands[3]);
  RequireType(op, "y", operands[4], q);
  RequireType(op, "lse", operands[5], AttentionLseType(q));
  RequireType(op, "dy", operands[6], q);
}

TensorTypes InferGrad(Operands operands, const Attributes& a) {
  RequireGradOperands("masked_attention_grad", operands, a);
  return {operands[0], operands[1], operands[2]};
}

TensorTypes InferMaskGrad(Operands operands, const Attributes& a) {
  RequireGradOperands("masked_attention_mask_grad", operands, a);
  WEFT_REQUIRE(IsFloating(operands[3].dtype), "masked_attention_mask_grad: a mask of bool has no gradient");
  return {operands[3]};
}

// Those of the scores, "1" where the mask repeats.
std::string MaskFactors(const AttentionFactors& f, const TensorType& mask) {
  const std::vector<std::string> scores = absl::StrSplit(absl::StrCat(f.lse, " t!"), ' ');
  std::string text;
  for (size_t dim = 0; dim < scores.size(); ++dim) {
    absl::StrAppend(&text, dim == 0 ? "" : " ", mask.shape[static_cast<int>(dim)] == 1 ? "1" : scores[dim]);
  }
  return text;
}

std::string Rule(Operands operands, const Attributes&) {
  const AttentionFactors f = AttentionFactorsOf(operands[0], operands[1]);
  return absl::StrCat(f.q, ", ", f.k, ", ", f.k, ", ", MaskFactors(f, operands[3]), " -> ", f.q, ", ", f.lse);
}

std::string GradOperandFactors(Operands operands, const AttentionFactors& f) {
  return absl::StrCat(f.q, ", ", f.k, ", ", f.k, ", ", MaskFactors(f, operands[3]), ", ", f.q, ", ", f.lse,
                      ", ", f.q);
}

std::string RuleGrad(Operands operands, const Attributes&) {
  const AttentionFactors f = AttentionFactorsOf(operands[0], operands[1]);
  return absl::StrCat(GradOperandFactors(operands, f), " -> ", f.q, ", ", f.k, ", ", f.k);
}

std::string RuleMaskGrad(Operands operands, const Attributes&) {
  const AttentionFactors f = AttentionFactorsOf(operands[0], operands[1]);
  return absl::StrCat(GradOperandFactors(operands, f), " -> ", MaskFactors(f, operands[3]));
}

void Backward(GradContext<Attributes, DropoutScalars>& ctx) {
  const Value dy = ctx.grad(0);
  RequireNoGradient("masked_attention", "lse", ctx.grad(1).defined());
  if (!dy.defined()) return;
  const std::vector<Value> operands = {ctx.saved("q"),
                                       ctx.saved("k"),
                                       ctx.saved("v"),
                                       ctx.saved("mask"),
                                       ctx.saved("y"),
                                       ctx.saved("lse"),
                                       dy};
  if (ctx.Wants(0) || ctx.Wants(1) || ctx.Wants(2)) {
    const Values grads = ctx.EmitAll(kMaskedAttentionGrad, operands, ctx.attributes(), ctx.scalars());
    for (int operand = 0; operand < 3; ++operand) {
      if (ctx.Wants(operand)) ctx.SetGrad(operand, grads[operand]);
    }
  }
  if (ctx.Wants(3)) {
    ctx.SetGrad(3, ctx.EmitAll(kMaskedAttentionMaskGrad, operands, ctx.attributes(), ctx.scalars())[0]);
  }
}

struct SampleShapes {
  Shape q;
  Shape k;
  TensorType mask;
  Attributes attributes;
  double rate = 0;
};

std::vector<SampleShapes> AllSampleShapes() {
  return {{{2, 3, 2, 4}, {2, 3, 2, 4}, {DType::kF32, {2, 1, 3, 3}}, {.causal = true}},
          {{2, 3, 3, 2}, {2, 4, 3, 2}, {DType::kF32, {1, 3, 1, 4}}, {.scale = 0.7}, 0.4},
          {{2, 2, 3, 2, 2}, {2, 4, 3, 2}, {DType::kF32, {2, 3, 2, 2, 1}}, {.causal = true}, 0.3},
          {{2, 3, 4, 2}, {2, 3, 2, 2}, {DType::kF32, {1, 4, 3, 3}}, {}, 0.2},
          {{2, 3, 2, 2}, {2, 5, 2, 2}, {DType::kBool, {2, 2, 3, 5}}, {}, 0.5},
          {{3, 2, 2, 2}, {3, 2, 2, 2}, {DType::kF32, {1, 1, 1, 1}}, {.causal = true}, 0.5}};
}

// A bool mask that hides half of the keys.
SampleOperand MaskOperand(const TensorType& mask) {
  return mask.dtype == DType::kBool ? SampleOperand{mask, 0, 2} : SampleOperand{mask};
}

DropoutScalars ScalarsOf(const SampleShapes& s) {
  return {.key = {.seed = 7, .stream = 3}, .rate = s.rate, .batch_offset = 2};
}

std::vector<Sample<Attributes, DropoutScalars>> Samples() {
  std::vector<Sample<Attributes, DropoutScalars>> samples;
  for (const SampleShapes& s : AllSampleShapes()) {
    const TensorType k = {DType::kF32, s.k};
    samples.push_back({{{{DType::kF32, s.q}}, {k}, {k}, MaskOperand(s.mask)}, s.attributes, ScalarsOf(s)});
  }
  return samples;
}

std::vector<Sample<Attributes, DropoutScalars>> GradSamples() {
  std::vector<Sample<Attributes, DropoutScalars>> samples;
  for (const SampleShapes& s : AllSampleShapes()) {
    const TensorType q = {DType::kF32, s.q};
    const TensorType k = {DType::kF32, s.k};
    samples.push_back(
        {{{q}, {k}, {k}, MaskOperand(s.mask), {q}, {AttentionLseType(q)}, {q}}, s.attributes, ScalarsOf(s)});
  }
  return samples;
}

std::vector<Sample<Attributes, DropoutScalars>> MaskGradSamples() {
  std::vector<Sample<Attributes, DropoutScalars>> samples = GradSamples();
  std::erase_if(samples, [](const auto& sample) { return sample.operands[3].type.dtype == DType::kBool; });
  return samples;
}

}  // namespace

constinit const Op<AttentionAttributes, DropoutScalars> kMaskedAttention = {{
    .name = "masked_attention",
    .operands = "q k v mask",
    .outputs = "y lse",
    .infer = Infer,
    .rule = Rule,
    .saves = "q k v mask y lse",
    .backward = Backward,
    .samples = Samples,
}};

// Both are linear in dy, since y and lse are taken as given.
constinit const Op<AttentionAttributes, DropoutScalars> kMaskedAttentionGrad = {
    {.name = "masked_attention_grad",
     .operands = "q k v mask y lse dy",
     .outputs = "dq dk dv",
     .infer = InferGrad,
     .rule = RuleGrad,
     .linear = "{dy}",
     .samples = GradSamples}};

constinit const Op<AttentionAttributes, DropoutScalars> kMaskedAttentionMaskGrad = {
    {.name = "masked_attention_mask_grad",
     .operands = "q k v mask y lse dy",
     .outputs = "dmask",
     .infer = InferMaskGrad,
     .rule = RuleMaskGrad,
     .linear = "{dy}",
     .samples = MaskGradSamples}};

}  // namespace weft
