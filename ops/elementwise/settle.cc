#include "ops/elementwise/settle.h"

#include "ops/sharding/sharding_rule.h"

namespace weft {
namespace {

TensorTypes Infer(absl::Span<const TensorType> operands, const NoAttributes&) { return {operands[0]}; }

std::string Rule(absl::Span<const TensorType> operands, const NoAttributes&) {
  return ElementwiseRule(/*num_operands=*/1, /*num_outputs=*/1, operands[0].ndim());
}

void Backward(GradContext<NoAttributes, NoScalars>& ctx) {
  const Value dy = ctx.grad();
  if (dy.defined() && ctx.Wants(0)) ctx.SetGrad(0, dy);
}

std::vector<Sample<>> Samples() {
  return {{.operands = {{{DType::kF32, {3, 5}}}}}, {.operands = {{{DType::kF32, {}}}}}};
}

}  // namespace

constinit const Op<> kSettle = {{
    .name = "settle",
    .operands = "x",
    .infer = Infer,
    .rule = Rule,
    .is_view = true,
    .backward = Backward,
    .samples = Samples,
}};

}  // namespace weft
