#include "dtensor/optim/lion.h"

#include "dtensor/dispatch.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {

Lion::Lion(std::vector<Parameter*> parameters, const LionOptions& options)
    : Optimizer(std::move(parameters), "Lion", options.groups), options_(options), momentum_(MakeMoment()) {
  RequireNoMatrices(options.groups, "Lion");
  RequireBetas(options.beta1, options.beta2, "Lion");
  RequireDecay(options.weight_decay, "Lion");
}

void Lion::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  std::vector<EachCall<LionScalars>> calls;
  calls.reserve(indices.size());
  for (const int i : indices) {
    calls.push_back({.operands = {value(i), momentum_[i], gradient(i), scale},
                     .scalars = {.lr = RateOf(i, lr),
                                 .beta1 = group(i).beta1.value_or(options_.beta1),
                                 .beta2 = group(i).beta2.value_or(options_.beta2),
                                 .weight_decay = DecayOf(i, options_.weight_decay)}});
  }
  CallEach(kLionUpdate, calls);
}

std::vector<std::pair<std::string, DTensor>> Lion::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendMoment("m", momentum_, &state);
  return state;
}

}  // namespace weft
