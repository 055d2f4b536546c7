#include "ops/elementwise/transcendental.h"

#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_op.h"
#include "ops/elementwise/scalar_arithmetic.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;
using Context = GradContext<NoAttributes, NoScalars>;

void BackwardSin(Context& context) {
  if (!context.Wants(0)) return;
  context.SetGrad(0, context.Emit(kMul, {context.grad(), context.Emit(kCos, {context.saved("x")})}));
}

void BackwardCos(Context& context) {
  if (!context.Wants(0)) return;
  const Value product = context.Emit(kMul, {context.grad(), context.Emit(kSin, {context.saved("x")})});
  context.SetGrad(0, context.Emit(kNeg, {product}));
}

void BackwardSigmoid(Context& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kSigmoidGrad, {context.saved("y"), context.grad()}));
}

void BackwardErf(Context& context) {
  if (context.Wants(0)) context.SetGrad(0, context.Emit(kErfGrad, {context.saved("x"), context.grad()}));
}

// Of dx = dy y (1 - y): p (1 - 2 y) with p = g dy. Near y = 1/2 the difference is exact; p - 2 (p y) is not, since
// p y has been rounded.
void BackwardSigmoidGrad(Context& context) {
  const Value y = context.saved("y");
  const Value g = context.grad();
  if (context.Wants(1)) context.SetGrad(1, context.Emit(kSigmoidGrad, {y, g}));
  if (!context.Wants(0)) return;
  const Value p = context.Emit(kMul, {g, context.saved("dy")});
  const Value twice = context.Emit(kScale, {y}, {}, {.factor = 2});
  const Value slope = context.Emit(kShift, {twice}, {}, {.negate = true, .shift = 1});
  context.SetGrad(0, context.Emit(kMul, {p, slope}));
}

// Of dx = dy 2 / sqrt(pi) exp(-x^2).
void BackwardErfGrad(Context& context) {
  const Value x = context.saved("x");
  const Value g = context.grad();
  if (context.Wants(1)) context.SetGrad(1, context.Emit(kErfGrad, {x, g}));
  if (!context.Wants(0)) return;
  const Value slope = context.Emit(kErfGrad, {x, context.Emit(kMul, {g, context.saved("dy")})});
  context.SetGrad(0, context.Emit(kScale, {context.Emit(kMul, {x, slope})}, {}, {.factor = -2}));
}

std::vector<Sample<>> Samples() { return SameSamples(1, -3, 3); }
std::vector<Sample<>> GradSamples() { return SameSamples(2, -2, 2); }

constexpr char kSinName[] = "sin";
constexpr char kCosName[] = "cos";
constexpr char kSigmoidName[] = "sigmoid";
constexpr char kErfName[] = "erf";
constexpr char kSigmoidGradName[] = "sigmoid_grad";
constexpr char kErfGradName[] = "erf_grad";

template <const char* kName>
TensorTypes Infer(Operands operands, const NoAttributes&) {
  return {SameType(kName, operands, Admits::kFloating)};
}

}  // namespace

constinit const Op<> kSin = {{
    .name = kSinName,
    .operands = "x",
    .infer = Infer<kSinName>,
    .rule = RuleSame,
    .saves = "x",
    .backward = BackwardSin,
    .samples = Samples,
}};
constinit const Op<> kCos = {{
    .name = kCosName,
    .operands = "x",
    .infer = Infer<kCosName>,
    .rule = RuleSame,
    .saves = "x",
    .backward = BackwardCos,
    .samples = Samples,
}};
constinit const Op<> kSigmoid = {{
    .name = kSigmoidName,
    .operands = "x",
    .infer = Infer<kSigmoidName>,
    .rule = RuleSame,
    .saves = "y",
    .backward = BackwardSigmoid,
    .samples = Samples,
}};
constinit const Op<> kErf = {{
    .name = kErfName,
    .operands = "x",
    .infer = Infer<kErfName>,
    .rule = RuleSame,
    .saves = "x",
    .backward = BackwardErf,
    .samples = Samples,
}};
constinit const Op<> kSigmoidGrad = {{
    .name = kSigmoidGradName,
    .operands = "y dy",
    .outputs = "dx",
    .infer = Infer<kSigmoidGradName>,
    .rule = RuleSame,
    .linear = "{dy}",
    .saves = "y dy",
    .backward = BackwardSigmoidGrad,
    .samples = GradSamples,
}};
constinit const Op<> kErfGrad = {{
    .name = kErfGradName,
    .operands = "x dy",
    .outputs = "dx",
    .infer = Infer<kErfGradName>,
    .rule = RuleSame,
    .linear = "{dy}",
    .saves = "x dy",
    .backward = BackwardErfGrad,
    .samples = GradSamples,
}};

}  // namespace weft
