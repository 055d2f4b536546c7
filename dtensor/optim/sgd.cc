#include "dtensor/optim/sgd.h"

#include "dtensor/dispatch.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {

Sgd::Sgd(std::vector<Parameter*> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  if (options.momentum != 0) momentum_ = MakeMoment();
}

void Sgd::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  if (momentum_.empty()) {
    std::vector<EachCall<SgdScalars>> calls;
    calls.reserve(indices.size());
    for (const int i : indices) {
      calls.push_back(
          {.operands = {value(i), gradient(i), scale},
           .scalars = {.lr = lr, .weight_decay = DecayOf(*parameters()[i], options_.weight_decay)}});
    }
    CallEach(kSgdUpdate, calls);
    return;
  }
  std::vector<EachCall<MomentumScalars>> calls;
  calls.reserve(indices.size());
  for (const int i : indices) {
    calls.push_back({.operands = {value(i), momentum_[i], gradient(i), scale},
                     .scalars = {.lr = lr,
                                 .momentum = options_.momentum,
                                 .weight_decay = DecayOf(*parameters()[i], options_.weight_decay)}});
  }
  CallEach(kMomentumUpdate, calls);
}

std::vector<std::pair<std::string, DTensor>> Sgd::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendMoment("momentum", momentum_, &state);
  return state;
}

}  // namespace weft
