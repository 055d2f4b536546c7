#include "ops/elementwise/scalar_arithmetic.h"

#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_op.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

void BackwardShift(GradContext<NoAttributes, ShiftScalars>& context) {
  if (!context.Wants(0)) return;
  context.SetGrad(0, context.scalars().negate ? context.Emit(kNeg, {context.grad()}) : context.grad());
}

void BackwardDivScalar(GradContext<NoAttributes, DivScalars>& context) {
  if (!context.Wants(0)) return;
  context.SetGrad(0, context.Emit(kDivScalar, {context.grad()}, {}, context.scalars()));
}

// -dy * y / x.
void BackwardScalarDiv(GradContext<NoAttributes, QuotientScalars>& context) {
  if (!context.Wants(0)) return;
  const Value slope = context.Emit(kDiv, {context.saved("y"), context.saved("x")});
  context.SetGrad(0, context.Emit(kNeg, {context.Emit(kMul, {context.grad(), slope})}));
}

std::vector<Sample<NoAttributes, ShiftScalars>> ShiftSamples() {
  auto samples = SameSamples(1, -1, 1, NoAttributes(), ShiftScalars{.shift = 1.5});
  samples.push_back({.operands = {{{DType::kF32, {3, 5}}}}, .scalars = {.negate = true, .shift = 0.5}});
  samples.push_back({.operands = {{{DType::kI64, {3, 2}}, -4, 4}}, .scalars = {.negate = true, .shift = 7}});
  return samples;
}

std::vector<Sample<NoAttributes, DivScalars>> DivScalarSamples() {
  return SameSamples(1, -1, 1, NoAttributes(), DivScalars{.divisor = -3});
}

std::vector<Sample<NoAttributes, QuotientScalars>> ScalarDivSamples() {
  return SameSamples(1, 0.5, 2, NoAttributes(), QuotientScalars{.dividend = -3});
}

}  // namespace

ExactTerms ExactTermsOf(int64_t number) {
  constexpr int64_t kExact = int64_t{1} << 53, kUnit = int64_t{1} << 32;
  const int64_t low = -kExact <= number && number <= kExact ? 0 : number % kUnit;
  return {.high = static_cast<double>(number - low), .low = static_cast<double>(low)};
}

constinit const Op<NoAttributes, ShiftScalars> kShift = {
    {.name = "shift",
     .operands = "x",
     .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
       return {SameType("shift", operands, Admits::kNumeric)};
     },
     .rule = RuleSame,
     .backward = BackwardShift,
     .samples = ShiftSamples}};

constinit const Op<NoAttributes, DivScalars> kDivScalar = {
    {.name = "div_scalar",
     .operands = "x",
     .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
       return {SameType("div_scalar", operands, Admits::kFloating)};
     },
     .rule = RuleSame,
     .linear = "{x}",
     .backward = BackwardDivScalar,
     .samples = DivScalarSamples}};

constinit const Op<NoAttributes, QuotientScalars> kScalarDiv = {
    {.name = "scalar_div",
     .operands = "x",
     .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
       return {SameType("scalar_div", operands, Admits::kFloating)};
     },
     .rule = RuleSame,
     .saves = "x y",
     .backward = BackwardScalarDiv,
     .samples = ScalarDivSamples}};

}  // namespace weft
