#include "dtensor/optim/adamw.h"

#include "dtensor/dispatch.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters)), options_(options), first_(MakeMoment()), second_(MakeMoment()) {}

void AdamW::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  const DTensor rates =
      Call(kAdamWRates, {updates()}, {}, {.lr = lr, .beta1 = options_.beta1, .beta2 = options_.beta2});
  std::vector<EachCall<AdamWScalars>> calls;
  calls.reserve(indices.size());
  for (const int i : indices) {
    calls.push_back({.operands = {value(i), first_[i], second_[i], gradient(i), scale, rates},
                     .scalars = {.lr = lr,
                                 .beta1 = options_.beta1,
                                 .beta2 = options_.beta2,
                                 .eps = options_.eps,
                                 .weight_decay = DecayOf(*parameters()[i], options_.weight_decay)}});
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
