#include "ops/elementwise/triangle.h"

#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const TriangleAttributes& a) {
  const TensorType& x = operands[0];
  WEFT_REQUIRE(x.ndim() >= 2, a.lower ? "tril" : "triu", ": expected two dims or more, got ", x.ToString());
  return {x};
}

std::string Rule(absl::Span<const TensorType> operands, const TriangleAttributes&) {
  return ElementwiseRule(1, 1, operands[0].ndim());
}

void Backward(GradContext<TriangleAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  ctx.SetGrad(0, ctx.Emit(kTriangle, {ctx.grad()}, ctx.attributes()));
}

std::vector<Sample<TriangleAttributes>> Samples() {
  return {{{{{DType::kF32, {4, 4}}}}, {.lower = true}},
          {{{{DType::kF32, {2, 3, 5}}}}, {.lower = false, .diagonal = 1}},
          {{{{DType::kF32, {5, 3}}}}, {.lower = true, .diagonal = -2}},
          {{{{DType::kI32, {3, 4}}, -9, 9}}, {.lower = false, .diagonal = -1}},
          {{{{DType::kF32, {2, 3}}}}, {.lower = true, .diagonal = 9}}};
}

}  // namespace

constinit const Op<TriangleAttributes> kTriangle = {{
    .name = "triangle",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .backward = Backward,
    .samples = Samples,
}};

}  // namespace weft
