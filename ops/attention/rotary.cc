#include "ops/attention/rotary.h"

#include "ops/declare/row_op.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const RotaryAttributes& a) {
  const TensorType& x = operands[0];
  WEFT_REQUIRE(IsFloating(x.dtype) && x.ndim() >= 3, "rotary: expected a floating x [b, s, ..., e], got ",
               x.ToString());
  WEFT_REQUIRE(x.shape[x.ndim() - 1] % 2 == 0,
               "rotary: elements turn in pairs, so the last dim must be even; got ", x.ToString());
  WEFT_REQUIRE(a.base > 0, "rotary: expected a positive base, got ", a.base);
  return {x};
}

std::string Rule(absl::Span<const TensorType> operands, const RotaryAttributes&) {
  const std::string factors = RowFactors(operands[0].ndim(), "e!");
  return absl::StrCat(factors, " -> ", factors);
}

void Backward(GradContext<RotaryAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  RotaryAttributes attributes = ctx.attributes();
  attributes.inverse = !attributes.inverse;
  ctx.SetGrad(0, ctx.Emit(kRotary, {ctx.grad()}, attributes));
}

std::vector<Sample<RotaryAttributes>> Samples() {
  return {{{{{DType::kF32, {2, 5, 3, 4}}}}, {}},
          {{{{DType::kF32, {1, 3, 1, 6}}}}, {.base = 100, .interleaved = true}},
          {{{{DType::kF32, {2, 3, 2, 2, 2}}}}, {.inverse = true}},
          {{{{DType::kF32, {3, 4, 2}}}}, {}}};
}

}  // namespace

constinit const Op<RotaryAttributes> kRotary = {{
    .name = "rotary",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .backward = Backward,
    .samples = Samples,
}};

}  // namespace weft
