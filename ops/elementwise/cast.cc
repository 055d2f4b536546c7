#include "ops/elementwise/cast.h"

#include "ops/elementwise/settle.h"
#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const CastAttributes& a) {
  WEFT_REQUIRE(IsFloating(a.dtype), "cast: expected a floating dtype for ", operands[0].ToString(), ", got ",
               DTypeName(a.dtype), "; use convert");
  return {{a.dtype, operands[0].shape}};
}

TensorTypes InferConvert(absl::Span<const TensorType> operands, const CastAttributes& a) {
  return {{a.dtype, operands[0].shape}};
}

std::string Rule(absl::Span<const TensorType> operands, const CastAttributes&) {
  return ElementwiseRule(/*num_operands=*/1, /*num_outputs=*/1, operands[0].ndim());
}

void Backward(GradContext<CastAttributes, NoScalars>& ctx) {
  if (!ctx.grad().defined() || !ctx.Wants(0)) return;
  const DType dtype = ctx.operand_type(0).dtype;
  Value dy = ctx.grad();
  if (!KeepsTerms(ctx.TypeOf(dy).dtype, dtype)) {
    // A parameter's is summed with all that comes for it, once, and with its bucket.
    if (ctx.TakesTerms(0, dy)) return ctx.SetGrad(0, dy);
    dy = ctx.Emit(kSettle, {dy});
  }
  ctx.SetGrad(0, ctx.Emit(kCast, {dy}, {.dtype = dtype}));
}

std::vector<Sample<CastAttributes>> Samples() {
  return {{{{{DType::kF32, {3, 5}}}}, {.dtype = DType::kF64}},
          {{{{DType::kF64, {2, 3}}}}, {.dtype = DType::kF32}},
          {{{{DType::kF32, {2, 1, 3}}}}, {.dtype = DType::kBF16}},
          {{{{DType::kI32, {4}}, -5, 5}}, {.dtype = DType::kF32}}};
}

std::vector<Sample<CastAttributes>> ConvertSamples() {
  return {{{{{DType::kI32, {3, 5}}, -5, 5}}, {.dtype = DType::kI64}},
          {{{{DType::kI64, {3}}, -2, 2}}, {.dtype = DType::kBool}}};
}

}  // namespace

constinit const Op<CastAttributes> kCast = {{
    .name = "cast",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x}",
    .is_remade = true,
    .backward = Backward,
    .samples = Samples,
}};

constinit const Op<CastAttributes> kConvert = {
    {.name = "convert", .operands = "x", .infer = InferConvert, .rule = Rule, .samples = ConvertSamples}};

}  // namespace weft
