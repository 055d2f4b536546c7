#include "ops/normalization/norm_second_order.h"

#include "ops/declare/reduced_dims.h"
#include "ops/elementwise/term.h"

namespace weft {
namespace {

// What both functions are made of, in the dtype of the statistics; statistics [..., 1].
class Norm {
 public:
  Norm(Emitter& emitter, const NormGradOperands& of)
      : emitter_(emitter),
        rows_(emitter.TypeOf(of.x).shape),
        dtype_(emitter.TypeOf(of.rstd).dtype),
        has_mean_(of.mean.defined()),
        rstd(Column(of.rstd)),
        c(has_mean_ ? Of(of.x) - Column(of.mean) : Of(of.x)),
        n(c * rstd) {}

  Term Of(Value value) const { return Cast({&emitter_, value}, dtype_); }
  // A statistic [...] as [..., 1].
  Term Column(Value statistic) const {
    Shape shape = rows_;
    shape[shape.ndim() - 1] = 1;
    return Spread(Of(statistic), shape, {.dims = Last()});
  }
  Term RowSum(const Term& rows) const { return SumOver(rows, {.dims = Last()}); }
  Term Mean(const Term& rows) const {
    return SumOver(rows, {.dims = Last(), .keepdims = true}) * (1.0 / static_cast<double>(Extent()));
  }
  // A of the header, given mean(n * a).
  Term Projected(const Term& a, const Term& na_mean) const {
    const Term centred = has_mean_ ? a - Mean(a) : a;
    return centred - n * na_mean;
  }
  Term Weight(Value w) const { return Of(w); }
  Shape WeightShape() const { return Shape({Extent()}); }
  bool has_mean() const { return has_mean_; }

 private:
  DimMask Last() const { return DimMaskOf({rows_.ndim() - 1}); }
  int64_t Extent() const { return rows_[rows_.ndim() - 1]; }

  Emitter& emitter_;
  const Shape rows_;
  const DType dtype_;
  const bool has_mean_;

 public:
  const Term rstd;  // [..., 1]
  const Term c;     // x - mean
  const Term n;
};

}  // namespace

NormGradOperands DifferentiateNormGrad(Emitter& emitter, const NormGradOperands& of,
                                       const NormGradGradients& gradients) {
  const DType dtype = emitter.TypeOf(of.x).dtype;
  const Norm norm(emitter, of);
  const Term dy = norm.Of(of.dy);
  Term to_dy, to_w, to_n, to_rstd;
  if (gradients.dx.defined()) {
    const Term u = norm.Of(gradients.dx);
    const Term w = norm.Weight(of.w);
    const Term g = dy * w;
    const Term un_mean = norm.Mean(u * norm.n);
    const Term gn_mean = norm.Mean(g * norm.n);
    const Term through = norm.rstd * norm.Projected(u, un_mean);
    to_dy = through * w;
    to_w = SumTo(through * dy, norm.WeightShape());
    to_n = -(norm.rstd * (gn_mean * u + un_mean * g));
    to_rstd = norm.RowSum(u * norm.Projected(g, gn_mean));
  }
  if (gradients.dw.defined()) {
    const Term p = norm.Weight(gradients.dw);
    to_dy = Plus(to_dy, p * norm.n);
    to_n = Plus(to_n, p * dy);
  }
  if (gradients.db.defined()) {
    const Term q =
        Spread(norm.Weight(gradients.db), dy.type().shape,
               {.dims = AllDims(dy.type().shape.ndim()) & ~DimMaskOf({dy.type().shape.ndim() - 1})});
    to_dy = Plus(to_dy, q);
  }
  NormGradOperands results;
  const auto take = [](const Term& term, DType to) {
    return term.defined() ? Cast(term, to).value : Value();
  };
  results.dy = take(to_dy, dtype);
  results.w = take(to_w, dtype);
  if (to_n.defined()) {
    const Term to_x = norm.rstd * to_n;
    results.x = take(to_x, dtype);
    if (norm.has_mean()) results.mean = (-norm.RowSum(to_x)).value;
    to_rstd = Plus(to_rstd, norm.RowSum(norm.c * to_n));
  }
  results.rstd = to_rstd.value;
  return results;
}

Value StatisticsGrad(Emitter& emitter, const NormGradOperands& of, Value mean_gradient, Value rstd_gradient) {
  if (!mean_gradient.defined() && !rstd_gradient.defined()) return {};
  const Shape rows = emitter.TypeOf(of.x).shape;
  const double share = 1.0 / static_cast<double>(rows[rows.ndim() - 1]);
  Term sum;
  if (mean_gradient.defined()) {
    const ReduceAttributes last = {.dims = DimMaskOf({rows.ndim() - 1})};
    sum = Spread(Term{&emitter, mean_gradient} * share, rows, last);
  }
  if (rstd_gradient.defined()) {
    const Norm norm(emitter, of);
    const Term scale = norm.rstd * norm.rstd * norm.Column(rstd_gradient) * -share;
    sum = Plus(sum, norm.n * scale);
  }
  return Cast(sum, emitter.TypeOf(of.x).dtype).value;
}

}  // namespace weft
