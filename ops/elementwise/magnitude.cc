#include "ops/elementwise/magnitude.h"

#include "ops/elementwise/elementwise_op.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

void BackwardAbs(GradContext<NoAttributes, NoScalars>& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kAbsGrad, {context.saved("x"), context.grad()}));
}

void BackwardAbsGrad(GradContext<NoAttributes, NoScalars>& context) {
  if (context.Wants(1)) context.SetGrad(1, context.Emit(kAbsGrad, {context.saved("x"), context.grad()}));
}

std::vector<Sample<>> Samples() {
  std::vector<Sample<>> samples = SameSamples(1, -2, 2);
  samples.push_back({.operands = {{{DType::kI32, {5, 3}}, -3, 3}}});
  return samples;
}

std::vector<Sample<>> GradSamples() { return SameSamples(2, -2, 2); }

}  // namespace

constinit const Op<> kAbs = {{
    .name = "abs",
    .operands = "x",
    .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
      return {SameType("abs", operands, Admits::kNumeric)};
    },
    .rule = RuleSame,
    .saves = "x",
    .backward = BackwardAbs,
    .samples = Samples,
}};

constinit const Op<> kSign = {{
    .name = "sign",
    .operands = "x",
    .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
      return {SameType("sign", operands, Admits::kNumeric)};
    },
    .rule = RuleSame,
    .samples = Samples,
}};

constinit const Op<> kAbsGrad = {{
    .name = "abs_grad",
    .operands = "x dy",
    .outputs = "dx",
    .infer = [](Operands operands, const NoAttributes&) -> TensorTypes {
      return {SameType("abs_grad", operands, Admits::kFloating)};
    },
    .rule = RuleSame,
    .linear = "{dy}",
    .saves = "x",
    .backward = BackwardAbsGrad,
    .samples = GradSamples,
}};

}  // namespace weft
