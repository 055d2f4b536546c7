#include "ops/indexing/scatter_reduce.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/dim_factors.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/cast.h"
#include "ops/elementwise/compare.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/logical.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/elementwise/select.h"
#include "ops/elementwise/settle.h"
#include "ops/elementwise/term.h"
#include "ops/indexing/gather.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;
using Context = GradContext<ScatterReduceAttributes, NoScalars>;

TensorTypes Infer(Operands operands, const ScatterReduceAttributes& a) {
  const TensorType& x = operands[0];
  const TensorType& index = operands[1];
  const TensorType& src = operands[2];
  WEFT_REQUIRE(a.reduce == ReduceOp::kMax || a.reduce == ReduceOp::kMin || a.reduce == ReduceOp::kProduct,
               "scatter_reduce: expected max, min or product, got ", ReduceOpName(a.reduce));
  WEFT_REQUIRE(x.dtype != DType::kU8 && x.dtype != DType::kBool, "scatter_reduce: cannot reduce ",
               x.ToString());
  WEFT_REQUIRE(index.dtype == DType::kI32 || index.dtype == DType::kI64,
               "scatter_reduce: the index must be i32 or i64, got ", index.ToString());
  WEFT_REQUIRE(a.dim >= 0 && a.dim < x.ndim(), "scatter_reduce: there is no dim ", a.dim, " in ",
               x.ToString());
  TensorType expected = x;
  if (index.ndim() == x.ndim()) expected.shape[a.dim] = index.shape[a.dim];
  WEFT_REQUIRE(index.shape == expected.shape,
               "scatter_reduce: the index must have the shape of x but for dim ", a.dim, "; index is ",
               index.ToString(), ", x is ", x.ToString());
  RequireType("scatter_reduce", "src", src, expected);
  return {x};
}

absl::string_view PartialName(ReduceOp reduce) {
  return reduce == ReduceOp::kMax ? "max" : reduce == ReduceOp::kMin ? "min" : "product";
}

// An index of extent 0 has no first piece to take x in, so it is whole.
std::string Rule(Operands operands, const ScatterReduceAttributes& a) {
  const int ndim = operands[0].ndim();
  const std::string x = DimFactors(ndim, a.dim, "v");
  const std::string index = DimFactors(ndim, a.dim, operands[1].shape[a.dim] > 0 ? "i" : "i!");
  return absl::StrCat(x, ", ", index, ", ", index, " -> ", PartialName(a.reduce), ": ", x);
}

// Of counts: x's dtype, but for f16, which counts no further than 65504.
DType CountDType(Context& ctx) {
  const DType dtype = ctx.operand_type(0).dtype;
  return dtype == DType::kF16 ? DType::kF32 : dtype;
}

// 1 where the flag holds, else 0.
Value CountOf(Context& ctx, Value flag, DType dtype) { return ctx.Emit(kConvert, {flag}, {.dtype = dtype}); }

// The sum of what of src reaches each element of y; and of what of x and of src does.
Value SumOfSrc(Context& ctx, Value index, Value of_src) {
  const int dim = ctx.attributes().dim;
  const int64_t extent = ctx.operand_type(0).shape[dim];
  return ctx.EmitLike(0, kScatterSum, {index, of_src}, {.dim = dim, .extent = extent});
}
Value SumReaching(Context& ctx, Value of_x, Value index, Value of_src) {
  return ctx.Emit(kAdd, {of_x, SumOfSrc(ctx, index, of_src)});
}

void BackwardExtremum(Context& ctx) {
  const GatherAttributes along = {.dim = ctx.attributes().dim};
  const Value y = ctx.saved("y");
  const Value index = ctx.saved("index");
  const Value src = ctx.saved("src");
  Value x_is = ctx.Emit(kEqual, {ctx.saved("x"), y});
  const Value src_is = ctx.Emit(kEqual, {src, ctx.Emit(kGather, {y, index}, along)});
  const DType dtype = CountDType(ctx);
  Value src_count = SumOfSrc(ctx, index, CountOf(ctx, src_is, dtype));
  if (!ctx.attributes().counts_x) {
    // What stands in place of x is the infinity that a src may be, too: x is the extremum only where no src is.
    src_count = ctx.Emit(kSettle, {src_count});
    const Value no_src_is = ctx.Emit(kLogicalNot, {IsNotZero(Term{&ctx.emitter(), src_count}).value});
    x_is = ctx.Emit(kLogicalAnd, {x_is, no_src_is});
  }
  const Value count = ctx.Emit(kAdd, {CountOf(ctx, x_is, dtype), src_count});
  const Term share = Cast(Cast({&ctx.emitter(), ctx.grad()}, dtype) / Term{&ctx.emitter(), count},
                          ctx.operand_type(0).dtype);
  if (ctx.Wants(0)) ctx.SetGrad(0, ctx.Emit(kKeepWhere, {x_is, share.value}));
  if (ctx.Wants(2))
    ctx.SetGrad(2, ctx.Emit(kKeepWhere, {src_is, ctx.Emit(kGather, {share.value, index}, along)}));
}

// dy times the product of the others: of the elements that are not 0, without the element itself, if no other
// is 0, else 0. Nothing is divided by 0 so.
void BackwardProduct(Context& ctx) {
  const ScatterReduceAttributes& a = ctx.attributes();
  const GatherAttributes along = {.dim = a.dim};
  const Value index = ctx.saved("index");
  // With 1 in place of 0.
  struct Factor {
    Value is_zero;
    Value number;
  };
  const auto factor_of = [&](Value of) -> Factor {
    const Term number = {&ctx.emitter(), of}, zero = OneWhereZero(number);
    return {zero.value, (number + zero).value};
  };
  const Factor x = factor_of(ctx.saved("x"));
  const Factor src = factor_of(ctx.saved("src"));
  const Value product = ctx.Emit(kScatterReduce, {x.number, index, src.number}, a);
  const Value zeros = SumReaching(ctx, x.is_zero, index, src.is_zero);
  const Value weighed = ctx.Emit(kMul, {ctx.grad(), product});
  const auto gradient_of = [&](const Factor& factor, Value weighed_here, Value zeros_here) {
    const Value others = IsNotZero(Term{&ctx.emitter(), ctx.Emit(kSub, {zeros_here, factor.is_zero})}).value;
    return ctx.Emit(kKeepWhere, {others, ctx.Emit(kDiv, {weighed_here, factor.number})}, {.value = false});
  };
  if (ctx.Wants(0)) ctx.SetGrad(0, gradient_of(x, weighed, zeros));
  if (ctx.Wants(2)) {
    ctx.SetGrad(2, gradient_of(src, ctx.Emit(kGather, {weighed, index}, along),
                               ctx.Emit(kGather, {zeros, index}, along)));
  }
}

void Backward(Context& ctx) {
  if (!ctx.grad().defined() || (!ctx.Wants(0) && !ctx.Wants(2))) return;
  ctx.attributes().reduce == ReduceOp::kProduct ? BackwardProduct(ctx) : BackwardExtremum(ctx);
}

std::vector<Sample<ScatterReduceAttributes>> Samples() {
  const auto operands = [](DType dtype, const Shape& x, const Shape& index, int64_t extent, double low,
                           double high) -> std::vector<SampleOperand> {
    return {{{dtype, x}, low, high},
            {{DType::kI64, index}, 0, static_cast<double>(extent)},
            {{dtype, index}, low, high}};
  };
  return {{operands(DType::kF32, {3, 5, 2}, {3, 4, 2}, 5, -1, 1), {.dim = 1, .reduce = ReduceOp::kMax}},
          {operands(DType::kF32, {3}, {7}, 3, -1, 1), {.dim = 0, .reduce = ReduceOp::kMin}},
          {operands(DType::kF32, {3, 2}, {5, 2}, 3, 0.5, 1.5), {.dim = 0, .reduce = ReduceOp::kProduct}},
          {operands(DType::kI64, {2, 4}, {2, 3}, 4, -4, 4), {.dim = 1, .reduce = ReduceOp::kProduct}},
          {operands(DType::kI32, {2, 4}, {2, 5}, 4, -4, 4), {.dim = 1, .reduce = ReduceOp::kMax}},
          {operands(DType::kF32, {4, 2}, {0, 2}, 4, -1, 1), {.dim = 0, .reduce = ReduceOp::kProduct}}};
}

}  // namespace

constinit const Op<ScatterReduceAttributes> kScatterReduce = {{
    .name = "scatter_reduce",
    .operands = "x index src",
    .infer = Infer,
    .rule = Rule,
    .saves = "x index src y",
    .backward = Backward,
    .samples = Samples,
}};

}  // namespace weft
