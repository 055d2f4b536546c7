#include "ops/shape/split.h"

#include <numeric>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/declare/dim_factors.h"
#include "ops/elementwise/elementwise.h"
#include "ops/shape/concat.h"
#include "ops/shape/slice.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const SplitAttributes& a) {
  const TensorType& x = operands[0];
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), "split: there is no dim ", a.dim, " in ", x.ToString());
  const bool positive = absl::c_all_of(a.sizes, [](int64_t size) { return size >= 0; });
  WEFT_REQUIRE(!a.sizes.empty() && positive && absl::c_accumulate(a.sizes, int64_t{0}) == x.shape[a.dim],
               "split: expected sizes that add up to ", x.shape[a.dim], ", dim ", a.dim, " of ", x.ToString(),
               ", got {", absl::StrJoin(a.sizes, ", "), "}");
  TensorTypes outputs(a.sizes.size(), x);
  for (size_t i = 0; i < a.sizes.size(); ++i) outputs[i].shape[a.dim] = a.sizes[i];
  return outputs;
}

std::string Rule(absl::Span<const TensorType> operands, const SplitAttributes& a) {
  const int ndim = operands[0].ndim();
  if (a.sizes.size() == 1)
    return absl::StrCat(DimFactors(ndim, a.dim, "s"), " -> ", DimFactors(ndim, a.dim, "s"));
  std::vector<std::string> right;
  for (size_t i = 0; i < a.sizes.size(); ++i)
    right.push_back(DimFactors(ndim, a.dim, absl::StrCat("t", i, "!")));
  return absl::StrCat(DimFactors(ndim, a.dim, "s@"), " -> ", absl::StrJoin(right, ", "));
}

// All gradients together are one concatenation; if some did not arrive, the others are padded and added.
void Backward(GradContext<SplitAttributes, NoScalars>& ctx) {
  if (!ctx.Wants(0)) return;
  const SplitAttributes& a = ctx.attributes();
  Values grads;
  for (int i = 0; i < ctx.num_outputs(); ++i) grads.push_back(ctx.grad(i));
  if (absl::c_all_of(grads, [](Value grad) { return grad.defined(); })) {
    ctx.SetGrad(0, ctx.EmitAll(kConcat, grads, {.dim = a.dim})[0]);
    return;
  }
  Value sum;
  int64_t start = 0;
  const int64_t extent = ctx.operand_type(0).shape[a.dim];
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].defined()) {
      const Value padded =
          ctx.EmitLike(0, kSliceGrad, {grads[i]}, {.dim = a.dim, .start = start, .extent = extent});
      sum = sum.defined() ? ctx.Emit(kAdd, {sum, padded}) : padded;
    }
    start += a.sizes[i];
  }
  if (sum.defined()) ctx.SetGrad(0, sum);
}

std::vector<Sample<SplitAttributes>> Samples() {
  return {{{{{DType::kF32, {2, 5, 3}}}}, {.dim = 1, .sizes = {2, 3}}},
          {{{{DType::kF32, {6}}}}, {.dim = 0, .sizes = {1, 0, 4, 1}}},
          {{{{DType::kI64, {4, 2}}, -5, 5}}, {.dim = 0, .sizes = {3, 1}}},
          {{{{DType::kF32, {3, 2}}}}, {.dim = 0, .sizes = {3}}}};
}

}  // namespace

constinit const Op<SplitAttributes> kSplit = {{
    .name = "split",
    .operands = "x",
    .outputs = "y...",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .is_view = true,
    .backward = Backward,
    .samples = Samples,
}};

}  // namespace weft
