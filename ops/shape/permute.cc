#include "ops/shape/permute.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const PermuteAttributes& a) {
  const TensorType& x = operands[0];
  TensorType y = {x.dtype, {}};
  for (int dim = 0; dim < x.ndim(); ++dim) {
    WEFT_REQUIRE(static_cast<int>(a.order.size()) == x.ndim() && absl::c_linear_search(a.order, dim),
                 "permute: expected an order of dims 0 to ", x.ndim() - 1, " for ", x.ToString(), ", got {",
                 absl::StrJoin(a.order, ", "), "}");
  }
  WEFT_REQUIRE(static_cast<int>(a.order.size()) == x.ndim(), "permute: expected an empty order for ",
               x.ToString(), ", got {", absl::StrJoin(a.order, ", "), "}");
  for (int dim : a.order) y.shape.push_back(x.shape[dim]);
  return {y};
}

std::string Rule(absl::Span<const TensorType> operands, const PermuteAttributes& a) {
  if (a.order.empty()) return "() -> ()";
  std::string text;
  for (int dim = 0; dim < operands[0].ndim(); ++dim) absl::StrAppend(&text, "f", dim, " ");
  absl::StrAppend(&text, "->");
  for (int dim : a.order) absl::StrAppend(&text, " f", dim);
  return text;
}

void Backward(GradContext<PermuteAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const PermuteAttributes& a = ctx.attributes();
  PermuteAttributes inverse = {a.order};
  for (size_t i = 0; i < a.order.size(); ++i) inverse.order[a.order[i]] = static_cast<int>(i);
  ctx.SetGrad(0, ctx.Emit(kPermute, {ctx.grad()}, inverse));
}

std::vector<Sample<PermuteAttributes>> Samples() {
  return {{{{{DType::kF32, {2, 3, 1, 5}}}}, {{2, 0, 3, 1}}},
          {{{{DType::kF32, {3, 5}}}}, {{1, 0}}},
          {{{{DType::kF32, {}}}}, {}}};
}

}  // namespace

constinit const Op<PermuteAttributes> kPermute = {{
    .name = "permute",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .is_view = true,
    .backward = Backward,
    .samples = Samples,
}};

}  // namespace weft
