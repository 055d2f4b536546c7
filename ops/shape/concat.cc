#include "ops/shape/concat.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/declare/dim_factors.h"
#include "ops/shape/slice.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const ConcatAttributes& a) {
  WEFT_REQUIRE(!operands.empty(), "concat: expected at least one operand");
  const TensorType& first = operands[0];
  WEFT_REQUIRE(a.dim >= 0 && a.dim < first.ndim(), "concat: there is no dim ", a.dim, " in ",
               first.ToString());
  TensorType y = first;
  for (size_t i = 1; i < operands.size(); ++i) {
    TensorType other = operands[i];
    if (other.ndim() == first.ndim()) {
      y.shape[a.dim] += other.shape[a.dim];
      other.shape[a.dim] = first.shape[a.dim];
    }
    WEFT_REQUIRE(other == first, "concat: operands may differ only in dim ", a.dim, "; operand 0 is ",
                 first.ToString(), ", operand ", i, " is ", operands[i].ToString());
  }
  return {y};
}

std::string Rule(absl::Span<const TensorType> operands, const ConcatAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::vector<std::string> left(operands.size(), DimFactors(ndim, a.dim, "c@"));
  return absl::StrCat(absl::StrJoin(left, ", "), " -> ", DimFactors(ndim, a.dim, "t"));
}

void Backward(GradContext<ConcatAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  if (!dy.defined()) return;
  const int dim = ctx.attributes().dim;
  int64_t start = 0;
  for (int i = 0; i < ctx.num_operands(); ++i) {
    const int64_t length = ctx.operand_type(i).shape[dim];
    if (ctx.Wants(i)) ctx.SetGrad(i, ctx.Emit(kSlice, {dy}, {.dim = dim, .start = start, .length = length}));
    start += length;
  }
}

std::vector<Sample<ConcatAttributes>> Samples() {
  return {{{{{DType::kF32, {3, 2, 5}}}, {{DType::kF32, {3, 1, 5}}}, {{DType::kF32, {3, 3, 5}}}}, {.dim = 1}},
          {{{{DType::kF32, {2}}}, {{DType::kF32, {0}}}, {{DType::kF32, {1}}}}, {.dim = 0}},
          {{{{DType::kF32, {3, 2}}}}, {.dim = 0}}};
}

}  // namespace

constinit const Op<ConcatAttributes> kConcat = {{
    .name = "concat",
    .operands = "x...",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x...}",
    .backward = Backward,
    .samples = Samples,
}};

}  // namespace weft
