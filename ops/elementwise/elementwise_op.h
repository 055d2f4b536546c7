#ifndef WEFT_OPS_ELEMENTWISE_ELEMENTWISE_OP_H_
#define WEFT_OPS_ELEMENTWISE_ELEMENTWISE_OP_H_

#include <string>
#include <utility>
#include <vector>

#include "ops/elementwise/broadcast.h"
#include "ops/op/op.h"
#include "ops/sharding/sharding_rule.h"

namespace weft {

// What ops that work element by element have in common: inference and rules of broadcasting operands,
// gradients of what was broadcast, samples.

// The dtypes that an op takes. kNumeric: floating, i32 and i64.
enum class Admits { kFloating, kNumeric, kBool, kAny };

// Errors: InvalidArgument that names the op and the type if its dtype is not admitted.
void RequireDType(absl::string_view op, const TensorType& type, Admits admits);

// The common shape under NumPy's rule.
// Errors: InvalidArgument naming the op and two types that do not broadcast.
Shape BroadcastShape(absl::string_view op, absl::Span<const TensorType> operands);

// The type of an op on operands of one dtype, broadcast to their common shape.
// Errors: InvalidArgument naming the op and the types.
TensorType BroadcastType(absl::string_view op, absl::Span<const TensorType> operands, Admits admits);

// The type of an op on operands of one type.
// Errors: InvalidArgument naming the op and the types.
TensorType SameType(absl::string_view op, absl::Span<const TensorType> operands, Admits admits);

// `OpFunctions::rule` of either.
template <class A = NoAttributes>
std::string RuleBroadcast(absl::Span<const TensorType> operands, const A&) {
  return BroadcastRule(operands);
}
template <class A = NoAttributes>
std::string RuleSame(absl::Span<const TensorType> operands, const A&) {
  return ElementwiseRule(static_cast<int>(operands.size()), /*num_outputs=*/1, operands[0].ndim());
}

// The gradient of an operand from that of its broadcast: sums the dims along which it was repeated.
template <class A, class R>
Value SumToOperand(GradContext<A, R>& context, int operand, Value gradient) {
  const Shape& shape = context.operand_type(operand).shape;
  if (context.TypeOf(gradient).shape == shape) return gradient;
  return context.Emit(kSumTo, {gradient}, {.shape = shape});
}
template <class A, class R>
void SetGradSummed(GradContext<A, R>& context, int operand, Value gradient) {
  context.SetGrad(operand, SumToOperand(context, operand, gradient));
}

// Shapes of two operands: equal, a bias, a scalar, both sides broadcast, extents of 1.
std::vector<std::pair<Shape, Shape>> BroadcastSampleShapes();

// One sample for each of them: `a` and `b` say what the operands are but for their shapes.
std::vector<Sample<>> BinarySamples(const SampleOperand& a, const SampleOperand& b);
// Samples of an op on `num_operands` of one shape, the first in [low, high), the others in [-1, 1).
template <class A = NoAttributes, class R = NoScalars>
std::vector<Sample<A, R>> SameSamples(int num_operands, double low, double high, const A& attributes = {},
                                      const R& scalars = {}, DType dtype = DType::kF32) {
  std::vector<Sample<A, R>> samples;
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 7}, Shape{4}, Shape{}}) {
    samples.push_back({.operands = {}, .attributes = attributes, .scalars = scalars});
    for (int i = 0; i < num_operands; ++i) samples.back().operands.push_back({{dtype, shape}});
    samples.back().operands[0].low = low;
    samples.back().operands[0].high = high;
  }
  return samples;
}

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_ELEMENTWISE_OP_H_
