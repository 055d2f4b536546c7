#include "dtensor/optim/adam_rates.h"

#include <algorithm>

#include "dtensor/dispatch.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {

void AdamRates::Add(const AdamKind& kind) {
  const auto found = std::find(kinds_.begin(), kinds_.end(), kind);
  kind_of_.push_back(static_cast<int>(found - kinds_.begin()));
  if (found == kinds_.end()) kinds_.push_back(kind);
}

void AdamRates::Begin(const DTensor& updates, double lr) {
  updates_ = updates;
  lr_ = lr;
  rates_.assign(kinds_.size(), DTensor());
}

const DTensor& AdamRates::Of(int index) {
  DTensor& rate = rates_[kind_of_[index]];
  if (!rate.defined()) {
    const AdamKind& of = kind(index);
    rate = Call(kAdamWRates, {updates_}, {}, {.lr = lr_ * of.lr_scale, .beta1 = of.beta1, .beta2 = of.beta2});
  }
  return rate;
}

}  // namespace weft
