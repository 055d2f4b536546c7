#include "dtensor/optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtensor/functions.h"
#include "dtensor/optim/square_sums.h"
#include "dtensor/redistribute_each.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {
namespace {

// `type` with an extent of 1 at `dim`, and `layout` where no axis splits that.
struct Reduced {
  TensorType type;
  Layout layout;
};

Reduced ReducedAlong(TensorType type, Layout layout, int dim) {
  std::vector<int64_t> extents(type.shape.begin(), type.shape.end());
  extents[dim] = 1;
  type.shape = Shape(extents);
  for (const int axis : layout.ShardAxes(dim)) layout = layout.WithReplicate(axis);
  return {type, layout};
}

double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::numeric_limits<double>::epsilon();
    case DType::kBF16:
      return 0x1p-7;
    case DType::kF16:
      return 0x1p-10;
    default:
      return std::numeric_limits<float>::epsilon();
  }
}

}  // namespace

Adafactor::Adafactor(std::vector<Parameter*> parameters, const AdafactorOptions& options)
    : Optimizer(std::move(parameters), "Adafactor", options.groups), options_(options) {
  RequireNoBetas(options.groups, "Adafactor");
  RequireNoMatrices(options.groups, "Adafactor");
  RequireDecay(options.weight_decay, "Adafactor");
  WEFT_REQUIRE(options.d >= 1, "Adafactor: expected a d of 1 or more, got ", options.d);
  WEFT_REQUIRE(options.beta2_decay <= 0, "Adafactor: expected a beta2_decay of 0 or less, got ",
               options.beta2_decay);
  MakeStates();
}

void Adafactor::MakeStates() {
  const size_t count = parameters().size();
  rows_.resize(count);
  columns_.resize(count);
  variances_.resize(count);
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const TensorType& type = parameters()[i]->at_rest().type();
    const Layout& layout = parameters()[i]->layouts().of_state();
    if (type.ndim() < 2) {
      variances_[i] = MakeState(i, type, layout);
      continue;
    }
    const Reduced row = ReducedAlong(type, layout, type.ndim() - 1);
    const Reduced column = ReducedAlong(type, layout, type.ndim() - 2);
    rows_[i] = MakeState(i, row.type, row.layout);
    columns_[i] = MakeState(i, column.type, column.layout);
  }
}

double Adafactor::Eps1(int index) const {
  const DType dtype = parameters()[index]->at_rest().dtype();
  // What is smaller would be 0 in the dtype of the arithmetic, and 0 / 0 not a number.
  const double least =
      dtype == DType::kF64 ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  return std::max(options_.eps1.value_or(Epsilon(dtype)), least);
}

DTensor Adafactor::Wide(const DTensor& state) {
  return state.dtype() == DType::kF64 ? state : Cast(state, DType::kF32);
}

void Adafactor::UpdateStates(absl::Span<const int> indices, const std::vector<DTensor>& gradients,
                             const DTensor& weight) {
  std::vector<DTensor> states;
  std::vector<DTensor> means;
  for (size_t k = 0; k < indices.size(); ++k) {
    const int i = indices[k];
    const DTensor squares = Square(gradients[k]);
    if (is_factored(i)) {
      states.push_back(rows_[i]);
      means.push_back(Mean(squares, {-1}, /*keep_dims=*/true));
      states.push_back(columns_[i]);
      means.push_back(Mean(squares, {-2}, /*keep_dims=*/true));
    } else {
      states.push_back(variances_[i]);
      means.push_back(squares);
    }
  }
  std::vector<EachMove> moves;
  for (size_t k = 0; k < states.size(); ++k) moves.push_back({.source = means[k], .to = states[k].layout()});
  means = RedistributeEach(moves);
  std::vector<EachCall<>> calls;
  for (size_t k = 0; k < states.size(); ++k) calls.push_back({.operands = {states[k], means[k], weight}});
  CallEach(kLerpUpdate, calls);
}

std::vector<DTensor> Adafactor::RowMeans(absl::Span<const int> indices) const {
  std::vector<DTensor> means;  // [..., 1, 1]
  std::vector<EachMove> moves;
  for (const int i : indices) {
    if (!is_factored(i)) continue;
    const DTensor& row = rows_[i];
    means.push_back(Mean(Wide(row), {-2}, /*keep_dims=*/true));
    moves.push_back(
        {.source = means.back(), .to = ReducedAlong(row.type(), row.layout(), row.ndim() - 2).layout});
  }
  if (!moves.empty()) means = RedistributeEach(moves);
  std::vector<DTensor> result;
  auto next = means.begin();
  for (const int i : indices) {
    result.push_back(is_factored(i) ? Clamp(*next++, {.min = Eps1(i)}) : DTensor());
  }
  return result;
}

DTensor Adafactor::Variance(int index, const DTensor& row_mean) const {
  if (!is_factored(index)) return Wide(variances_[index]);
  // [..., m, 1] x [..., 1, n] -> [..., m, n]
  return Mul(Div(Wide(rows_[index]), row_mean), Wide(columns_[index]));
}

void Adafactor::Update(absl::Span<const int> with_gradients, double lr, const DTensor& scale) {
  std::vector<int> indices;  // a mean over nothing is not a number
  for (const int i : with_gradients) {
    if (parameters()[i]->spec().shape.num_elements() > 0) indices.push_back(i);
  }
  if (indices.empty()) return;
  const PurposeGuard purpose(updates().context()->state(), Purpose::kNorm);
  std::vector<DTensor> gradients;
  for (const int i : indices) gradients.push_back(ScaledGradient(i, scale));
  const DTensor zero = Scale(Cast(scale, DType::kF64), 0);  // or NaN, if the update is to skip itself
  const DTensor t = Add(Cast(updates(), DType::kF64), zero);
  UpdateStates(indices, gradients, Add(Pow(t, options_.beta2_decay), zero));  // NaN to the power of 0 is 1
  const std::vector<DTensor> row_means = RowMeans(indices);

  std::vector<DTensor> both;
  for (const int i : indices) both.push_back(value(i));
  std::vector<double> counts;  // of elements
  std::vector<double> rates;
  for (size_t k = 0; k < indices.size(); ++k) {
    const int i = indices[k];
    // Not by eps1^2 under the root, which f32 may not hold: that of 1e-30 would be 0.
    both.push_back(Div(gradients[k], Clamp(Sqrt(Variance(i, row_means[k])), {.min = Eps1(i)})));
    counts.push_back(static_cast<double>(value(i).shape().num_elements()));
    rates.push_back(RateOf(i, lr));
  }
  const auto n = static_cast<int64_t>(indices.size());
  const IntrusivePtr<MeshContext>& context = value(indices[0]).context();
  const auto vector = [&](const std::vector<double>& numbers) {
    return DTensor::Distribute(context, Tensor::FromValues<double>({n}, numbers, context->allocator()),
                               Layout(/*ndim=*/1, context->mesh().num_axes()));
  };
  const DTensor squares = Cast(SquareSums(both), DType::kF64);  // [2 n]
  const DTensor count = vector(counts);
  const DTensor value_rms = Sqrt(Div(Slice(squares, 0, 0, n), count));
  const DTensor update_rms = Sqrt(Div(Slice(squares, 0, n, n), count));
  const DTensor rate = Minimum(vector(rates), Rsqrt(t));  // NaN wins
  const DTensor alpha = Mul(Maximum(value_rms, options_.eps2), rate);
  const DTensor step = Div(alpha, Maximum(Div(update_rms, options_.d), 1));
  // A step that is not finite would skip the update, as only the scale may. 0 shows what is not finite of u in p.
  const std::vector<DTensor> steps = Unbind(Add(Where(IsFinite(step), step, 0), zero), 0);
  std::vector<EachCall<SgdScalars>> calls;
  for (size_t k = 0; k < indices.size(); ++k) {
    const int i = indices[k];
    calls.push_back(
        {.operands = {value(i), both[n + k], steps[k]},
         .scalars = {.lr = 1, .weight_decay = RateOf(i, lr) * DecayOf(i, options_.weight_decay)}});
  }
  CallEach(kSgdUpdate, calls);
}

std::vector<std::pair<std::string, DTensor>> Adafactor::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendMoment("row", rows_, &state);
  AppendMoment("column", columns_, &state);
  AppendMoment("variance", variances_, &state);
  return state;
}

}  // namespace weft
