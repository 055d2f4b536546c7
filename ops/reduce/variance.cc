#include "ops/reduce/variance.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ops/declare/reduced_dims.h"
#include "ops/declare/row_op.h"
#include "ops/elementwise/cast.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/settle.h"
#include "ops/elementwise/term.h"

namespace weft {
namespace {

using Operands = absl::Span<const TensorType>;
using Context = GradContext<VarianceAttributes, NoScalars>;

void RequireFloating(absl::string_view op, const TensorType& x) {
  WEFT_REQUIRE(IsFloating(x.dtype), op, ": expected a floating dtype, got ", x.ToString());
}

TensorType MeanType(absl::string_view op, const TensorType& x, DimMask dims) {
  RequireFloating(op, x);
  TensorType type = ReducedType(op, x, {.dims = dims, .keepdims = true});
  type.dtype = StatisticDType(x.dtype);
  return type;
}

std::string MeanFactors(const TensorType& x, DimMask dims) {
  return KeptFactors(x.ndim(), {.dims = dims, .keepdims = true});
}

template <const Op<VarianceAttributes>* op>
TensorTypes Infer(Operands operands, const VarianceAttributes& a) {
  const TensorType mean = MeanType(op->name(), operands[0], a.dims);
  return {ReducedType(op->name(), operands[0], a.Reduce()), mean};
}

std::string Rule(Operands operands, const VarianceAttributes& a) {
  const TensorType& x = operands[0];
  return absl::StrCat(AllFactors(x.ndim(), a.dims), " -> ", KeptFactors(x.ndim(), a.Reduce()), ", ",
                      MeanFactors(x, a.dims));
}

template <bool kRoot>
Values Decompose(Emitter& emitter, absl::Span<const Value> operands, const VarianceAttributes& a,
                 const NoScalars&) {
  const Value x = emitter.Emit(kSettle, {operands[0]});
  const Value mean = emitter.Emit(kSettle, {emitter.Emit(kMeanStatistic, {x}, a.Reduce())});
  Value y = emitter.Emit(kCenteredSquares, {x, mean}, a.Reduce());  // f64
  const TensorType x_type = emitter.TypeOf(x);
  const double divisor =
      std::max(0.0, static_cast<double>(ReducedCount(x_type.shape, a.dims)) - a.correction);
  const auto cast = [&](DType dtype) {
    if (emitter.TypeOf(y).dtype != dtype) y = emitter.Emit(kCast, {y}, {.dtype = dtype});
  };
  // Terms may be scaled, but neither divided by 0 (0 / 0 in one would outdo the others) nor rounded to 16
  // bits. Where no root follows they may be rounded to f32, which holds them where it holds the variance.
  if (divisor == 0) y = emitter.Emit(kSettle, {y});
  y = emitter.Emit(kScale, {y}, {}, {.factor = 1 / divisor});
  if (kRoot) {
    y = emitter.Emit(kSqrt, {y});
  } else {
    cast(StatisticDType(x_type.dtype));
    if (emitter.TypeOf(y).dtype != x_type.dtype) y = emitter.Emit(kSettle, {y});
  }
  cast(x_type.dtype);
  return {y, mean};
}

// What a gradient of the mean adds to that of x, if there is one.
Value WithMeanGrad(Context& ctx, Value gradient) {
  const Value to_mean = ctx.grad(1);
  if (!to_mean.defined()) return gradient;
  const TensorType& x = ctx.operand_type(0);
  const double share = 1 / static_cast<double>(ReducedCount(x.shape, ctx.attributes().dims));
  const Term spread = Spread(Term{&ctx.emitter(), to_mean} * share, x.shape, {.keepdims = true});
  return Plus({&ctx.emitter(), gradient}, Cast(spread, x.dtype)).value;
}

void BackwardVariance(Context& ctx) {
  if (!ctx.Wants(0)) return;
  Value gradient;
  if (ctx.grad().defined()) {
    gradient = ctx.Emit(kVarianceGrad, {ctx.saved("x"), ctx.saved("mean"), ctx.grad()}, ctx.attributes());
  }
  gradient = WithMeanGrad(ctx, gradient);
  if (gradient.defined()) ctx.SetGrad(0, gradient);
}

void BackwardStd(Context& ctx) {
  if (!ctx.Wants(0)) return;
  Value gradient;
  if (ctx.grad().defined()) {
    gradient =
        ctx.Emit(kStdGrad, {ctx.saved("x"), ctx.saved("mean"), ctx.saved("y"), ctx.grad()}, ctx.attributes());
  }
  gradient = WithMeanGrad(ctx, gradient);
  if (gradient.defined()) ctx.SetGrad(0, gradient);
}

// Of dx = dy (x - mean) * constant, and of dx = dy / y (x - mean) * constant, in the dtype of the mean. Where y is
// 0 so is dx, and all of these are: u and dy are 0 there, and nothing is divided by 0, so that further derivatives
// are 0, too.
template <bool kRoot>
void BackwardGrad(Context& ctx) {
  const VarianceAttributes& a = ctx.attributes();
  const TensorType& x = ctx.operand_type(0);
  const DType dtype = ctx.operand_type(1).dtype;
  const auto term = [&](Value value) { return Cast(Term{&ctx.emitter(), value}, dtype); };
  const double divisor = std::max(0.0, static_cast<double>(ReducedCount(x.shape, a.dims)) - a.correction);
  // Terms of a sum may be scaled, but not divided by 0: one alone would give inf, or nan.
  const Value g = divisor > 0 ? ctx.grad() : ctx.Emit(kSettle, {ctx.grad()});
  Term u = term(g) * ((kRoot ? 1 : 2) / divisor);
  const Term centred = term(ctx.saved("x")) - term(ctx.saved("mean"));
  constexpr int kDy = kRoot ? 3 : 2;
  Term y, factor = term(ctx.saved("dy"));
  if (kRoot) {
    const Term root = term(ctx.saved("y"));
    const Term varies = IsNotZero(root);
    y = OneForZero(root);
    u = KeptWhere(Spread(varies, x.shape, a.Reduce()), u);
    factor = KeptWhere(varies, factor) / y;
  }
  if (ctx.Wants(0) || ctx.Wants(1)) {
    const Term to_x = u * Spread(factor, x.shape, a.Reduce());
    if (ctx.Wants(0)) ctx.SetGrad(0, Cast(to_x, x.dtype).value);
    if (ctx.Wants(1)) ctx.SetGrad(1, (-SumOver(to_x, {.dims = a.dims, .keepdims = true})).value);
  }
  if (!ctx.Wants(kDy) && !(kRoot && ctx.Wants(2))) return;
  Term to_dy = SumOver(u * centred, a.Reduce());
  if (kRoot) to_dy = to_dy / y;
  if (ctx.Wants(kDy)) ctx.SetGrad(kDy, Cast(to_dy, x.dtype).value);
  if (kRoot && ctx.Wants(2)) ctx.SetGrad(2, Cast(-(to_dy * factor), x.dtype).value);
}

// x mean [y] dy -> dx.
template <const Op<VarianceAttributes>* op>
TensorTypes InferGrad(Operands operands, const VarianceAttributes& a) {
  const TensorType& x = operands[0];
  RequireType(op->name(), "mean", operands[1], MeanType(op->name(), x, a.dims));
  const TensorType result = ReducedType(op->name(), x, a.Reduce());
  for (size_t i = 2; i < operands.size(); ++i) {
    RequireType(op->name(), i + 1 == operands.size() ? "dy" : "y", operands[i], result);
  }
  return {x};
}

std::string RuleGrad(Operands operands, const VarianceAttributes& a) {
  const TensorType& x = operands[0];
  const std::string all = AllFactors(x.ndim());
  std::string text = absl::StrCat(all, ", ", MeanFactors(x, a.dims));
  for (size_t i = 2; i < operands.size(); ++i)
    absl::StrAppend(&text, ", ", KeptFactors(x.ndim(), a.Reduce()));
  return absl::StrCat(text, " -> ", all);
}

TensorTypes InferMean(Operands operands, const ReduceAttributes& a) {
  return {MeanType("mean_statistic", operands[0], a.dims)};
}

std::string RuleMean(Operands operands, const ReduceAttributes& a) {
  return absl::StrCat(AllFactors(operands[0].ndim()), " -> ", MeanFactors(operands[0], a.dims));
}

TensorTypes InferSquares(Operands operands, const ReduceAttributes& a) {
  const TensorType& x = operands[0];
  RequireType("centered_squares", "mean", operands[1], MeanType("centered_squares", x, a.dims));
  TensorType result = ReducedType("centered_squares", x, a);
  result.dtype = DType::kF64;
  return {result};
}

std::string RuleSquares(Operands operands, const ReduceAttributes& a) {
  const int ndim = operands[0].ndim();
  return absl::StrCat(AllFactors(ndim), ", ", MeanFactors(operands[0], a.dims), " -> ", KeptFactors(ndim, a));
}

SampleOperand F32(const Shape& shape, double low = -1, double high = 1) {
  return {.type = {DType::kF32, shape}, .low = low, .high = high};
}

std::vector<Sample<VarianceAttributes>> Samples() {
  return {
      {.operands = {F32({3, 5})}, .attributes = {.dims = DimMaskOf({1})}},
      {.operands = {F32({4, 3})}, .attributes = {.dims = DimMaskOf({0}), .keepdims = true, .correction = 0}},
      {.operands = {F32({2, 3, 4})}, .attributes = {.dims = DimMaskOf({0, 2}), .correction = 1.5}},
      {.operands = {F32({7})}, .attributes = {.dims = AllDims(1)}}};
}

std::vector<Sample<VarianceAttributes>> VarianceGradSamples() {
  return {{.operands = {F32({3, 5}), F32({3, 1}), F32({3})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({2, 3, 4}), F32({1, 3, 1}), F32({1, 3, 1})},
           .attributes = {.dims = DimMaskOf({0, 2}), .keepdims = true}}};
}

std::vector<Sample<VarianceAttributes>> StdGradSamples() {
  return {{.operands = {F32({3, 5}), F32({3, 1}), F32({3}, 0.5, 2), F32({3})},
           .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({4}), F32({1}), F32({1}, 0.5, 2), F32({1})},
           .attributes = {.dims = DimMaskOf({0}), .keepdims = true}}};
}

std::vector<Sample<ReduceAttributes>> MeanSamples() {
  return {{.operands = {F32({3, 5})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({2, 3, 4})}, .attributes = {.dims = DimMaskOf({0, 2})}},
          {.operands = {F32({7})}, .attributes = {.dims = AllDims(1)}}};
}

std::vector<Sample<ReduceAttributes>> SquaresSamples() {
  return {{.operands = {F32({3, 5}), F32({3, 1})}, .attributes = {.dims = DimMaskOf({1})}},
          {.operands = {F32({2, 3, 4}), F32({1, 3, 1})},
           .attributes = {.dims = DimMaskOf({0, 2}), .keepdims = true}}};
}

}  // namespace

constinit const Op<VarianceAttributes> kVariance = {{
    .name = "variance",
    .operands = "x",
    .outputs = "y mean",
    .infer = Infer<&kVariance>,
    .rule = Rule,
    .saves = "x mean",
    .backward = BackwardVariance,
    .decomposition = Decompose</*kRoot=*/false>,
    .samples = Samples,
}};
constinit const Op<VarianceAttributes> kStd = {{
    .name = "std",
    .operands = "x",
    .outputs = "y mean",
    .infer = Infer<&kStd>,
    .rule = Rule,
    .saves = "x y mean",
    .backward = BackwardStd,
    .decomposition = Decompose</*kRoot=*/true>,
    .samples = Samples,
}};
constinit const Op<VarianceAttributes> kVarianceGrad = {{
    .name = "variance_grad",
    .operands = "x mean dy",
    .outputs = "dx",
    .infer = InferGrad<&kVarianceGrad>,
    .rule = RuleGrad,
    .linear = "{x mean}{dy}",
    .saves = "x mean dy",
    .backward = BackwardGrad</*kRoot=*/false>,
    .samples = VarianceGradSamples,
}};
constinit const Op<VarianceAttributes> kStdGrad = {{
    .name = "std_grad",
    .operands = "x mean y dy",
    .outputs = "dx",
    .infer = InferGrad<&kStdGrad>,
    .rule = RuleGrad,
    .linear = "{x mean}{dy}",
    .saves = "x mean y dy",
    .backward = BackwardGrad</*kRoot=*/true>,
    .samples = StdGradSamples,
}};
constinit const Op<ReduceAttributes> kMeanStatistic = {{
    .name = "mean_statistic",
    .operands = "x",
    .infer = InferMean,
    .rule = RuleMean,
    .linear = "{x}",
    .samples = MeanSamples,
}};
constinit const Op<ReduceAttributes> kCenteredSquares = {{
    .name = "centered_squares",
    .operands = "x mean",
    .infer = InferSquares,
    .rule = RuleSquares,
    .samples = SquaresSamples,
}};

}  // namespace weft
