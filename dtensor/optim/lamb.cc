#include "dtensor/optim/lamb.h"

#include "dtensor/functions.h"
#include "dtensor/optim/square_sums.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {

Lamb::Lamb(std::vector<Parameter*> parameters, const LambOptions& options)
    : Optimizer(std::move(parameters), "Lamb", options.groups),
      options_(options),
      first_(MakeMoment()),
      second_(MakeMoment()) {
  RequireNoMatrices(options.groups, "Lamb");
  RequireBetas(options.beta1, options.beta2, "Lamb");
  RequireEps(options.eps, "Lamb");
  RequireDecay(options.weight_decay, "Lamb");
  for (size_t i = 0; i < this->parameters().size(); ++i) {
    const ParameterGroup& group = this->group(static_cast<int>(i));
    rates_.Add({.beta1 = group.beta1.value_or(options.beta1), .beta2 = group.beta2.value_or(options.beta2)});
  }
}

// AdamW's update of learning rate 1, without decay, on -w p instead of p: that is -u, in one pass.
std::vector<DTensor> Lamb::Directions(absl::Span<const int> indices, const DTensor& scale) {
  rates_.Begin(updates(), /*lr=*/1);
  std::vector<DTensor> directions;
  std::vector<EachCall<AdamWScalars>> calls;
  for (const int i : indices) {
    const AdamKind& kind = rates_.kind(i);
    const double decay = DecayOf(i, options_.weight_decay);
    directions.push_back(decay != 0 ? Scale(value(i), -decay) : ZerosLike(value(i)));
    calls.push_back({.operands = {directions.back(), first_[i], second_[i], gradient(i), scale, rates_.Of(i)},
                     .scalars = {.lr = 1, .beta1 = kind.beta1, .beta2 = kind.beta2, .eps = options_.eps}});
  }
  CallEach(kAdamWUpdate, calls);
  rates_.End();
  return directions;
}

void Lamb::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  const std::vector<DTensor> directions = Directions(indices, scale);
  std::vector<DTensor> both;
  for (const int i : indices) both.push_back(value(i));
  both.insert(both.end(), directions.begin(), directions.end());
  const DTensor squares = SquareSums(both);  // [2 n]
  const auto n = static_cast<int64_t>(indices.size());
  const DTensor of_values = Slice(squares, 0, 0, n);
  const DTensor of_directions = Slice(squares, 0, n, n);
  const DTensor both_positive = LogicalAnd(Greater(of_values, 0), Greater(of_directions, 0));
  DTensor ratios = Where(both_positive, Sqrt(Div(of_values, of_directions)), 1);
  // Adds a zero, or a NaN if the update is to skip itself.
  ratios = Add(ratios, Scale(Cast(scale, ratios.dtype()), 0));
  const std::vector<DTensor> ratio = Unbind(ratios, 0);
  std::vector<EachCall<SgdScalars>> calls;
  for (size_t k = 0; k < indices.size(); ++k) {
    calls.push_back({.operands = {value(indices[k]), directions[k], ratio[k]},
                     .scalars = {.lr = -RateOf(indices[k], lr)}});
  }
  CallEach(kSgdUpdate, calls);
}

std::vector<std::pair<std::string, DTensor>> Lamb::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendMoment("m", first_, &state);
  AppendMoment("v", second_, &state);
  return state;
}

}  // namespace weft
