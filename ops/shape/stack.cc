#include "ops/shape/stack.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/declare/dim_factors.h"

namespace weft {
namespace {

void RequirePositions(size_t num_operands, const StackAttributes& a) {
  bool increasing = a.positions.size() == num_operands;
  int64_t last = -1;
  for (int64_t position : a.positions) {
    increasing = increasing && position > last && position < a.extent;
    last = position;
  }
  WEFT_REQUIRE(increasing, "stack: expected ", num_operands, " increasing positions below ", a.extent,
               ", got {", absl::StrJoin(a.positions, ", "), "}");
}

TensorTypes Infer(absl::Span<const TensorType> operands, const StackAttributes& a) {
  WEFT_REQUIRE(!operands.empty(), "stack: expected at least one operand");
  TensorType y = operands[0];
  WEFT_REQUIRE(a.dim >= 0 && a.dim <= y.ndim(), "stack: cannot make a dim ", a.dim, " for ", y.ToString());
  for (size_t i = 1; i < operands.size(); ++i) {
    WEFT_REQUIRE(operands[i] == y, "stack: operands must be of one type; operand 0 is ", y.ToString(),
                 ", operand ", i, " is ", operands[i].ToString());
  }
  if (!a.positions.empty()) RequirePositions(operands.size(), a);
  y.shape.Insert(a.dim, a.positions.empty() ? static_cast<int64_t>(operands.size()) : a.extent);
  return {y};
}

std::string Rule(absl::Span<const TensorType> operands, const StackAttributes& a) {
  const int ndim = operands[0].ndim() + 1;
  const std::vector<std::string> left(operands.size(), OtherFactors(ndim, a.dim));
  return absl::StrCat(absl::StrJoin(left, ", "), " -> ", DimFactors(ndim, a.dim, "t!"));
}

void Backward(GradContext<StackAttributes, NoScalars>& ctx) {
  bool wanted = false;
  for (int i = 0; i < ctx.num_operands(); ++i) wanted = wanted || ctx.Wants(i);
  if (!wanted || !ctx.grad().defined()) return;
  const StackAttributes& a = ctx.attributes();
  const Values grads = ctx.EmitAll(kUnbind, {ctx.grad()}, {.dim = a.dim});
  for (int i = 0; i < ctx.num_operands(); ++i) {
    if (ctx.Wants(i)) ctx.SetGrad(i, grads[a.positions.empty() ? i : a.positions[i]]);
  }
}

TensorTypes InferUnbind(absl::Span<const TensorType> operands, const UnbindAttributes& a) {
  TensorType y = operands[0];
  WEFT_REQUIRE(a.dim >= 0 && a.dim < y.ndim(), "unbind: there is no dim ", a.dim, " in ", y.ToString());
  const int64_t count = y.shape[a.dim];
  WEFT_REQUIRE(count > 0, "unbind: dim ", a.dim, " of ", y.ToString(),
               " is empty: there would be no outputs");
  y.shape.Remove(a.dim);
  return TensorTypes(count, y);
}

std::string RuleUnbind(absl::Span<const TensorType> operands, const UnbindAttributes& a) {
  const TensorType& x = operands[0];
  const std::vector<std::string> right(x.shape[a.dim], OtherFactors(x.ndim(), a.dim));
  return absl::StrCat(DimFactors(x.ndim(), a.dim, "t!"), " -> ", absl::StrJoin(right, ", "));
}

void BackwardUnbind(GradContext<UnbindAttributes, NoScalars>& ctx) {
  if (!ctx.Wants(0)) return;
  StackAttributes attributes = {.dim = ctx.attributes().dim, .extent = ctx.num_outputs()};
  Values grads;
  for (int i = 0; i < ctx.num_outputs(); ++i) {
    const Value grad = ctx.grad(i);
    if (!grad.defined()) continue;
    grads.push_back(grad);
    attributes.positions.push_back(i);
  }
  if (!grads.empty()) ctx.SetGrad(0, ctx.EmitAll(kStack, grads, attributes)[0]);
}

std::vector<Sample<StackAttributes>> Samples() {
  const SampleOperand matrix = {{DType::kF32, {3, 2}}};
  const SampleOperand scalar = {{DType::kF32, {}}};
  return {{{matrix, matrix, matrix}, {.dim = 1}},
          {{matrix}, {.dim = 0}},
          {{scalar, scalar}, {.dim = 0}},
          {{matrix, matrix}, {.dim = 2, .extent = 5, .positions = {1, 4}}}};
}

std::vector<Sample<UnbindAttributes>> UnbindSamples() {
  return {{{{{DType::kF32, {5, 3, 2}}}}, {.dim = 1}},
          {{{{DType::kF32, {1, 3}}}}, {.dim = 0}},
          {{{{DType::kF32, {2}}}}, {.dim = 0}}};
}

}  // namespace

constinit const Op<StackAttributes> kStack = {{
    .name = "stack",
    .operands = "x...",
    .infer = Infer,
    .rule = Rule,
    .linear = "{x...}",
    .backward = Backward,
    .samples = Samples,
}};

constinit const Op<UnbindAttributes> kUnbind = {{
    .name = "unbind",
    .operands = "x",
    .outputs = "y...",
    .infer = InferUnbind,
    .rule = RuleUnbind,
    .linear = "{x}",
    .is_view = true,
    .backward = BackwardUnbind,
    .samples = UnbindSamples,
}};

}  // namespace weft
