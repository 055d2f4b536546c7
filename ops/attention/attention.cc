#include "ops/attention/attention.h"

#include <cmath>

#include "ops/declare/row_op.h"

namespace weft {
namespace {

void RequireHeads(absl::string_view op, const TensorType& q, const TensorType& k, const TensorType& v) {
  const auto fits = [&] {
    if (k.ndim() != 4 || (q.ndim() != 4 && q.ndim() != 5) || q.shape[0] != k.shape[0]) return false;
    if (q.shape[q.ndim() - 1] != k.shape[3]) return false;
    if (q.ndim() == 5) return q.shape[2] == k.shape[2];
    return q.shape[2] == k.shape[2] || (k.shape[2] > 0 && q.shape[2] % k.shape[2] == 0);
  };
  WEFT_REQUIRE(IsFloating(q.dtype) && q.dtype == k.dtype && k == v && fits(), op,
               ": expected q [b, s, h, e] and k, v [b, t, h, e], or for grouped queries q [b, s, h, g, e] or "
               "[b, s, h*g, e], floating and of one dtype; got q ",
               q.ToString(), ", k ", k.ToString(), ", v ", v.ToString());
  WEFT_REQUIRE(k.shape[3] > 0, op, ": heads must have elements, got k ", k.ToString());
}

void RequireVisibleKeys(absl::string_view op, const TensorType& q, const TensorType& k,
                        const AttentionAttributes& a) {
  WEFT_REQUIRE(
      !a.causal || q.shape[1] <= k.shape[1], op,
      ": a causal mask lets the last query see the last key, so there may not be more queries than keys; "
      "got q ",
      q.ToString(), ", k ", k.ToString());
}

TensorTypes Infer(absl::Span<const TensorType> operands, const AttentionAttributes& a) {
  RequireAttention("attention", operands[0], operands[1], operands[2], a);
  return {operands[0], AttentionLseType(operands[0])};
}

TensorTypes InferGrad(absl::Span<const TensorType> operands, const AttentionAttributes& a) {
  const TensorType& q = operands[0];
  RequireAttention("attention_grad", q, operands[1], operands[2], a);
  const TensorType lse = AttentionLseType(q);
  WEFT_REQUIRE(operands[3] == q && operands[4] == lse && operands[5] == q,
               "attention_grad: expected y and dy ", q.ToString(), ", lse ", lse.ToString(), "; got y ",
               operands[3].ToString(), ", lse ", operands[4].ToString(), ", dy ", operands[5].ToString());
  return {q, operands[1], operands[2]};
}

std::string Rule(absl::Span<const TensorType> operands, const AttentionAttributes&) {
  const AttentionFactors f = AttentionFactorsOf(operands[0], operands[1]);
  return absl::StrCat(f.q, ", ", f.k, ", ", f.k, " -> ", f.q, ", ", f.lse);
}

std::string RuleGrad(absl::Span<const TensorType> operands, const AttentionAttributes&) {
  const AttentionFactors f = AttentionFactorsOf(operands[0], operands[1]);
  return absl::StrCat(f.q, ", ", f.k, ", ", f.k, ", ", f.q, ", ", f.lse, ", ", f.q, " -> ", f.q, ", ", f.k,
                      ", ", f.k);
}

void Backward(GradContext<AttentionAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad(0);
  RequireNoGradient("attention", "lse", ctx.grad(1).defined());
  if (!dy.defined() || !(ctx.Wants(0) || ctx.Wants(1) || ctx.Wants(2))) return;
  const Values grads = ctx.EmitAll(
      kAttentionGrad, {ctx.saved("q"), ctx.saved("k"), ctx.saved("v"), ctx.saved("y"), ctx.saved("lse"), dy},
      ctx.attributes());
  for (int operand = 0; operand < 3; ++operand) {
    if (ctx.Wants(operand)) ctx.SetGrad(operand, grads[operand]);
  }
}

// Shapes of q and k for the tests over all ops.
struct SampleShapes {
  Shape q;
  Shape k;
  AttentionAttributes attributes;
};

std::vector<SampleShapes> AllSampleShapes() {
  return {{{2, 3, 2, 4}, {2, 3, 2, 4}, {.causal = true}},
          {{3, 1, 1, 3}, {3, 5, 1, 3}, {.causal = false, .scale = 0.7}},
          {{1, 2, 3, 2, 2}, {1, 4, 3, 2}, {.causal = true}},
          {{2, 3, 4, 2}, {2, 3, 2, 2}, {.causal = true}}};
}

std::vector<Sample<AttentionAttributes>> Samples() {
  std::vector<Sample<AttentionAttributes>> samples;
  for (const SampleShapes& s : AllSampleShapes()) {
    const TensorType k = {DType::kF32, s.k};
    samples.push_back({{{{DType::kF32, s.q}}, {k}, {k}}, s.attributes});
  }
  return samples;
}

std::vector<Sample<AttentionAttributes>> GradSamples() {
  std::vector<Sample<AttentionAttributes>> samples;
  for (const SampleShapes& s : AllSampleShapes()) {
    const TensorType q = {DType::kF32, s.q};
    const TensorType k = {DType::kF32, s.k};
    samples.push_back({{{q}, {k}, {k}, {q}, {AttentionLseType(q)}, {q}}, s.attributes});
  }
  return samples;
}

}  // namespace

double AttentionScale(const AttentionAttributes& attributes, int64_t e) {
  return attributes.scale != 0 ? attributes.scale : 1 / std::sqrt(static_cast<double>(e));
}

AttentionFactors AttentionFactorsOf(const TensorType& q, const TensorType& k) {
  if (q.ndim() == 5) return {"b s! h g e!", "b t! h e!", "b h g s!"};
  if (q.shape[2] == k.shape[2]) return {"b s! h e!", "b t! h e!", "b h s!"};
  return {"b s! q! e!", "b t! h! e!", "b q! s!"};
}

// q without s and e, then s.
TensorType AttentionLseType(const TensorType& q) {
  TensorType lse = {StatisticDType(q.dtype), q.shape};
  lse.shape.Remove(q.ndim() - 1);
  lse.shape.Remove(1);
  lse.shape.push_back(q.shape[1]);
  return lse;
}

void RequireAttention(absl::string_view op, const TensorType& q, const TensorType& k, const TensorType& v,
                      const AttentionAttributes& attributes) {
  RequireHeads(op, q, k, v);
  RequireVisibleKeys(op, q, k, attributes);
}

constinit const Op<AttentionAttributes> kAttention = {{
    .name = "attention",
    .operands = "q k v",
    .outputs = "y lse",
    .infer = Infer,
    .rule = Rule,
    .saves = "q k v y lse",
    .backward = Backward,
    .samples = Samples,
}};

// Linear in dy, since y and lse are taken as given.
constinit const Op<AttentionAttributes> kAttentionGrad = {{
    .name = "attention_grad",
    .operands = "q k v y lse dy",
    .outputs = "dq dk dv",
    .infer = InferGrad,
    .rule = RuleGrad,
    .linear = "{dy}",
    .samples = GradSamples,
}};

}  // namespace weft
