#include "ops/reduce/argmax.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/reduced_dims.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/settle.h"
#include "ops/reduce/reduce.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;

ReduceAttributes ReduceOf(const ArgAttributes& a) {
  return {.dims = DimMaskOf({a.dim}), .keepdims = a.keepdims};
}

TensorType IndexType(const char* op, const TensorType& x, const ArgAttributes& a) {
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), op, ": there is no dim ", a.dim, " in ", x.ToString());
  return {DType::kI64, ReducedType(op, x, ReduceOf(a)).shape};
}

template <const Op<ArgAttributes>* op>
TensorTypes Infer(Operands operands, const ArgAttributes& a) {
  const TensorType& x = operands[0];
  const TensorType result = IndexType(op->name(), x, a);
  WEFT_REQUIRE(x.shape[a.dim] > 0, op->name(), ": dim ", a.dim, " of ", x.ToString(),
               " is empty and has no extremum");
  return {result};
}

std::string Rule(Operands operands, const ArgAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim, DimMaskOf({a.dim})), " -> ", KeptFactors(ndim, ReduceOf(a)));
}

template <const Op<ReduceAttributes>* reduce>
Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const ArgAttributes& a,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value value = emitter.Emit(*reduce, {x}, ReduceOf(a));
  return {emitter.Emit(kSettle, {emitter.Emit(kIndexOf, {x, value}, a)})};
}

TensorTypes InferIndexOf(Operands operands, const ArgAttributes& a) {
  const TensorType& x = operands[0];
  const TensorType result = IndexType("index_of", x, a);
  RequireType("index_of", "value", operands[1], {x.dtype, result.shape});
  return {result};
}

std::string RuleIndexOf(Operands operands, const ArgAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string kept = KeptFactors(ndim, ReduceOf(a));
  return absl::StrCat(AllFactors(ndim), ", ", kept, " -> min: ", kept);
}

// Integers, so that some are equal.
std::vector<Sample<ArgAttributes>> Samples() {
  return {{.operands = {{{DType::kF32, {2, 5, 3}}}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kI32, {4, 6}}, 0, 3}}, .attributes = {.dim = 1, .keepdims = true}},
          {.operands = {{{DType::kBool, {6, 2}}, 0, 2}}, .attributes = {.dim = 0}},
          {.operands = {{{DType::kF32, {1}}}}, .attributes = {.dim = 0}}};
}

std::vector<Sample<ArgAttributes>> IndexOfSamples() {
  return {{.operands = {{{DType::kI32, {4, 6}}, 0, 4}, {{DType::kI32, {4}}, 0, 4}}, .attributes = {.dim = 1}},
          {.operands = {{{DType::kU8, {5, 2}}, 0, 3}, {{DType::kU8, {1, 2}}, 0, 3}},
           .attributes = {.dim = 0, .keepdims = true}}};
}

}  // namespace

constinit const Op<ArgAttributes> kArgMax = {{
    .name = "argmax",
    .operands = "x",
    .infer = Infer<&kArgMax>,
    .rule = Rule,
    .decomposition = Decompose<&kReduceMax>,
    .samples = Samples,
}};
constinit const Op<ArgAttributes> kArgMin = {{
    .name = "argmin",
    .operands = "x",
    .infer = Infer<&kArgMin>,
    .rule = Rule,
    .decomposition = Decompose<&kReduceMin>,
    .samples = Samples,
}};
constinit const Op<ArgAttributes> kIndexOf = {{
    .name = "index_of",
    .operands = "x value",
    .infer = InferIndexOf,
    .rule = RuleIndexOf,
    .samples = IndexOfSamples,
}};

}  // namespace weft
