#include "ops/shape/flip_roll.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/declare/dim_factors.h"

namespace weft {
namespace {

TensorTypes InferFlip(absl::Span<const TensorType> operands, const FlipAttributes& a) {
  const TensorType& x = operands[0];
  for (int dim : a.dims) {
    WEFT_REQUIRE(dim >= 0 && dim < x.ndim() && absl::c_count(a.dims, dim) == 1, "flip: expected dims of ",
                 x.ToString(), ", each once, got {", absl::StrJoin(a.dims, ", "), "}");
  }
  return {x};
}

// A flipped dim goes by two names: its pieces on one side are not those on the other.
std::string RuleFlip(absl::Span<const TensorType> operands, const FlipAttributes& a) {
  const int ndim = operands[0].ndim();
  if (ndim == 0) return "() -> ()";
  std::vector<std::string> left;
  std::vector<std::string> right;
  for (int dim = 0; dim < ndim; ++dim) {
    const bool flipped = absl::c_linear_search(a.dims, dim);
    left.push_back(flipped ? absl::StrCat("x", dim, "@") : absl::StrCat("f", dim));
    right.push_back(absl::StrCat(flipped ? "y" : "f", dim));
  }
  return absl::StrCat(absl::StrJoin(left, " "), " -> ", absl::StrJoin(right, " "));
}

void BackwardFlip(GradContext<FlipAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.EmitLike(0, kFlip, {ctx.grad()}, ctx.attributes()));
}

TensorTypes InferRoll(absl::Span<const TensorType> operands, const RollAttributes& a) {
  const TensorType& x = operands[0];
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), "roll: there is no dim ", a.dim, " in ", x.ToString());
  return {x};
}

std::string RuleRoll(absl::Span<const TensorType> operands, const RollAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(DimFactors(ndim, a.dim, "s@"), " -> ", DimFactors(ndim, a.dim, "t"));
}

void BackwardRoll(GradContext<RollAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const RollAttributes& a = ctx.attributes();
  // As the remainder, since the most negative shift has no negation.
  const int64_t extent = ctx.operand_type(0).shape[a.dim];
  const int64_t back = extent == 0 ? 0 : -(a.shift % extent);
  ctx.SetGrad(0, ctx.EmitLike(0, kRoll, {ctx.grad()}, {.dim = a.dim, .shift = back}));
}

std::vector<Sample<FlipAttributes>> FlipSamples() {
  return {{{{{DType::kF32, {3, 2, 5}}}}, {.dims = {0, 2}}},
          {{{{DType::kF32, {4, 3}}}}, {.dims = {1}}},
          {{{{DType::kI32, {5}}, -9, 9}}, {.dims = {0}}},
          {{{{DType::kBool, {2, 3}}, 0, 2}}, {.dims = {}}}};
}

std::vector<Sample<RollAttributes>> RollSamples() {
  return {{{{{DType::kF32, {3, 5, 2}}}}, {.dim = 1, .shift = 2}},
          {{{{DType::kF32, {4, 3}}}}, {.dim = 0, .shift = -9}},
          {{{{DType::kI64, {5}}, -9, 9}}, {.dim = 0, .shift = 1}},
          {{{{DType::kF32, {0, 2}}}}, {.dim = 0, .shift = 1}}};
}

}  // namespace

constinit const Op<FlipAttributes> kFlip = {{
    .name = "flip",
    .operands = "x",
    .infer = InferFlip,
    .rule = RuleFlip,
    .linear = "{x}",
    .backward = BackwardFlip,
    .samples = FlipSamples,
}};
constinit const Op<RollAttributes> kRoll = {{
    .name = "roll",
    .operands = "x",
    .infer = InferRoll,
    .rule = RuleRoll,
    .linear = "{x}",
    .backward = BackwardRoll,
    .samples = RollSamples,
}};

}  // namespace weft
