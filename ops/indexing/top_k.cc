#include "ops/indexing/top_k.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"
#include "ops/indexing/sort.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

TensorTypes ResultTypes(const char* op, TensorType x, const TopKAttributes& a) {
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), op, ": there is no dim ", a.dim, " in ", x.ToString());
  WEFT_REQUIRE(a.k >= 0, op, ": k must not be negative, got ", a.k);
  x.shape[a.dim] = a.k;
  return {x, {DType::kI64, x.shape}};
}

TensorTypes Infer(Operands operands, const TopKAttributes& a) {
  const TensorType& x = operands[0];
  const TensorTypes result = ResultTypes("top_k", x, a);
  WEFT_REQUIRE(a.k <= x.shape[a.dim], "top_k: k of ", a.k, " is more than dim ", a.dim, " of ", x.ToString(),
               " has");
  return result;
}

// Candidates may be fewer than k in a piece.
TensorTypes InferCandidates(Operands operands, const TopKAttributes& a) {
  return ResultTypes("top_k_candidates", operands[0], a);
}

// The dim has another extent on either side, and is whole on both.
std::string RuleOf(const TensorType& x, const TopKAttributes& a, int num_operands) {
  const std::string from = DimFactors(x.ndim(), a.dim, "n!");
  const std::string to = DimFactors(x.ndim(), a.dim, "k!");
  return absl::StrCat(from, num_operands == 2 ? absl::StrCat(", ", from) : "", " -> ", to, ", ", to);
}

std::string Rule(Operands operands, const TopKAttributes& a) {
  return RuleOf(operands[0], a, static_cast<int>(operands.size()));
}

Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const TopKAttributes& a,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Values best = emitter.EmitOnPieces(kTopKCandidates, {x}, a.dim, PieceOutputs::kStatistic, a);
  const TensorType from = emitter.TypeOf(x);
  const int64_t candidates = emitter.TypeOf(best[0]).shape[a.dim];
  const int64_t item = ItemSize(from.dtype);
  if (candidates * (item + ItemSize(DType::kI64)) < from.shape[a.dim] * item) {
    return emitter.EmitAll(kTopKMerge, {best[0], best[1]}, a);
  }
  return emitter.EmitAll(kTopKCandidates, {x}, a);
}

void Backward(GradContext<TopKAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const int dim = ctx.attributes().dim;
  ctx.SetGrad(0, ctx.EmitLike(0, kSelectionGrad, {ctx.saved("indices"), ctx.grad()},
                              {.dim = dim, .extent = ctx.operand_type(0).shape[dim]}));
}

TensorTypes InferMerge(Operands operands, const TopKAttributes& a) {
  const TensorType& values = operands[0];
  const TensorTypes result = ResultTypes("top_k_merge", values, a);
  RequireType("top_k_merge", "indices", operands[1], {DType::kI64, values.shape});
  WEFT_REQUIRE(a.k <= values.shape[a.dim], "top_k_merge: k of ", a.k, " is more than there are in ",
               values.ToString());
  return result;
}

std::vector<Sample<TopKAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 5, 3}}}}, .attributes = {.dim = 1, .k = 2}},
          {.operands = {{{DType::kF32, {3, 4}}}}, .attributes = {.dim = 1, .k = 4, .largest = false}},
          {.operands = {{{DType::kI32, {7, 2}}, 0, 4}}, .attributes = {.dim = 0, .k = 3}},
          {.operands = {{{DType::kF32, {2}}}}, .attributes = {.dim = 0, .k = 0}}};
}

std::vector<Sample<TopKAttributes>> MergeSamples() {
  return {{.operands = {{{DType::kF32, {2, 5}}}, {{DType::kI64, {2, 5}}, 0, 100}},
           .attributes = {.dim = 1, .k = 2}},
          {.operands = {{{DType::kI32, {6, 2}}, 0, 3}, {{DType::kI64, {6, 2}}, 0, 100}},
           .attributes = {.dim = 0, .k = 3, .largest = false}}};
}

}  // namespace

constinit const Op<TopKAttributes> kTopK = {{
    .name = "top_k",
    .operands = "x",
    .outputs = "values indices",
    .infer = Infer,
    .rule = Rule,
    .saves = "indices",
    .backward = Backward,
    .decomposition = Decompose,
    .samples = Samples,
}};
constinit const Op<TopKAttributes> kTopKCandidates = {{
    .name = "top_k_candidates",
    .operands = "x",
    .outputs = "values indices",
    .infer = InferCandidates,
    .rule = Rule,
    .samples = Samples,
}};
constinit const Op<TopKAttributes> kTopKMerge = {{
    .name = "top_k_merge",
    .operands = "values indices",
    .outputs = "best_values best_indices",
    .infer = InferMerge,
    .rule = Rule,
    .samples = MergeSamples,
}};

}  // namespace weft
