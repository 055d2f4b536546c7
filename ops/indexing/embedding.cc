#include "ops/indexing/embedding.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"

namespace weft {
namespace {

void RequireTokens(absl::string_view op, const TensorType& tokens) {
  WEFT_REQUIRE(tokens.dtype == DType::kI32 || tokens.dtype == DType::kI64, op,
               ": tokens must be i32 or i64, got ", tokens.ToString());
}

TensorTypes Infer(absl::Span<const TensorType> operands, const NoAttributes&) {
  const TensorType& tokens = operands[0];
  const TensorType& table = operands[1];
  RequireTokens("embedding", tokens);
  WEFT_REQUIRE(IsFloating(table.dtype) && table.ndim() == 2,
               "embedding: table must be floating and [v, d], got ", table.ToString());
  TensorType y = {table.dtype, tokens.shape};
  y.shape.push_back(table.shape[1]);
  return {y};
}

std::string Rule(absl::Span<const TensorType> operands, const NoAttributes&) {
  const int ndim = operands[0].ndim() + 1;
  return absl::StrCat(StatisticFactors(ndim), ", v@ d -> ", RowFactors(ndim, "d"));
}

void Backward(GradContext<NoAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  if (!dy.defined() || !ctx.Wants(1)) return;
  ctx.SetGrad(1, ctx.EmitLike(1, kEmbeddingGrad, {ctx.saved("tokens"), dy},
                              {.vocabulary = ctx.operand_type(1).shape[0]}));
}

TensorTypes InferGrad(absl::Span<const TensorType> operands, const EmbeddingGradAttributes& attributes) {
  const TensorType& tokens = operands[0];
  const TensorType& dy = operands[1];
  RequireTokens("embedding_grad", tokens);
  RequireRows("embedding_grad", "dy", dy);
  WEFT_REQUIRE(attributes.vocabulary >= 0, "embedding_grad: vocabulary must not be negative, got ",
               attributes.vocabulary);
  const int64_t d = dy.shape[dy.ndim() - 1];
  TensorType expected = {dy.dtype, tokens.shape};
  expected.shape.push_back(d);
  RequireType("embedding_grad", "dy", dy, expected);
  return {{dy.dtype, Shape({attributes.vocabulary, d})}};
}

std::string RuleGrad(absl::Span<const TensorType> operands, const EmbeddingGradAttributes&) {
  const int ndim = operands[1].ndim();
  return absl::StrCat(StatisticFactors(ndim), ", ", RowFactors(ndim, "d"), " -> v d");
}

void BackwardGrad(GradContext<EmbeddingGradAttributes, NoScalars>& ctx) {
  if (ctx.Wants(1)) ctx.SetGrad(1, ctx.Emit(kEmbedding, {ctx.saved("tokens"), ctx.grad()}));
}

std::vector<Sample<>> Samples() {
  return {{.operands = {{{DType::kI64, {2, 3}}, 0, 7}, {{DType::kF32, {7, 5}}}}},
          {.operands = {{{DType::kI32, {6}}, 0, 4}, {{DType::kF32, {4, 1}}}}},
          {.operands = {{{DType::kI64, {}}, 0, 3}, {{DType::kF32, {3, 2}}}}}};
}

std::vector<Sample<EmbeddingGradAttributes>> SamplesGrad() {
  return {
      {.operands = {{{DType::kI64, {2, 3}}, 0, 7}, {{DType::kF32, {2, 3, 5}}}},
       .attributes = {.vocabulary = 7}},
      {.operands = {{{DType::kI32, {6}}, 0, 4}, {{DType::kF32, {6, 1}}}}, .attributes = {.vocabulary = 4}}};
}

}  // namespace

constinit const Op<> kEmbedding = {{
    .name = "embedding",
    .operands = "tokens table",
    .infer = Infer,
    .rule = Rule,
    .linear = "{table}",
    .saves = "tokens",
    .backward = Backward,
    .samples = Samples,
}};
constinit const Op<EmbeddingGradAttributes> kEmbeddingGrad = {{
    .name = "embedding_grad",
    .operands = "tokens dy",
    .outputs = "dtable",
    .infer = InferGrad,
    .rule = RuleGrad,
    .linear = "{dy}",
    .saves = "tokens",
    .backward = BackwardGrad,
    .samples = SamplesGrad,
}};

}  // namespace weft
