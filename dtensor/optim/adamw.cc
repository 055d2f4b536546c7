#include "dtensor/optim/adamw.h"

#include <algorithm>

#include "dtensor/dispatch.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), "AdamW", options.groups),
      options_(options),
      first_(MakeMoment()),
      second_(MakeMoment()) {
  for (size_t i = 0; i < this->parameters().size(); ++i) {
    const ParameterGroup& group = this->group(static_cast<int>(i));
    const Kind kind = {.lr_scale = group.lr_scale.value_or(1),
                       .beta1 = group.beta1.value_or(options.beta1),
                       .beta2 = group.beta2.value_or(options.beta2)};
    const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
    kind_of_.push_back(static_cast<int>(found - kinds_.begin()));
    if (found == kinds_.end()) kinds_.push_back(kind);
  }
}

void AdamW::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  std::vector<DTensor> rates(kinds_.size());  // of the kinds that occur
  for (const int i : indices) {
    const Kind& kind = kinds_[kind_of_[i]];
    DTensor& rate = rates[kind_of_[i]];
    if (rate.defined()) continue;
    rate =
        Call(kAdamWRates, {updates()}, {}, {.lr = RateOf(i, lr), .beta1 = kind.beta1, .beta2 = kind.beta2});
  }
  std::vector<EachCall<AdamWScalars>> calls;
  calls.reserve(indices.size());
  for (const int i : indices) {
    const Kind& kind = kinds_[kind_of_[i]];
    calls.push_back({.operands = {value(i), first_[i], second_[i], gradient(i), scale, rates[kind_of_[i]]},
                     .scalars = {.lr = RateOf(i, lr),
                                 .beta1 = kind.beta1,
                                 .beta2 = kind.beta2,
                                 .eps = options_.eps,
                                 .weight_decay = DecayOf(i, options_.weight_decay)}});
  }
  CallEach(kAdamWUpdate, calls);
}

std::vector<std::pair<std::string, DTensor>> AdamW::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendMoment("m", first_, &state);
  AppendMoment("v", second_, &state);
  return state;
}

}  // namespace weft
