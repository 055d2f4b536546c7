#include "dtensor/optim/sgd.h"

#include "dtensor/dispatch.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {

Sgd::Sgd(std::vector<Parameter*> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters), "Sgd", options.groups), options_(options) {
  RequireNoBetas(options.groups, "Sgd");
  RequireNoMatrices(options.groups, "Sgd");
  RequireDecay(options.weight_decay, "Sgd");
  WEFT_REQUIRE(options.momentum >= 0 && options.momentum < 1,
               "Sgd: expected a momentum of at least 0 and below 1, got ", options.momentum);
  WEFT_REQUIRE(!options.nesterov || options.momentum != 0, "Sgd: nesterov needs a momentum, got 0");
  if (options.momentum != 0) momentum_ = MakeMoment();
}

void Sgd::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  if (momentum_.empty()) {
    std::vector<EachCall<SgdScalars>> calls;
    calls.reserve(indices.size());
    for (const int i : indices) {
      calls.push_back({.operands = {value(i), gradient(i), scale},
                       .scalars = {.lr = RateOf(i, lr), .weight_decay = DecayOf(i, options_.weight_decay)}});
    }
    CallEach(kSgdUpdate, calls);
    return;
  }
  std::vector<EachCall<MomentumScalars>> calls;
  calls.reserve(indices.size());
  for (const int i : indices) {
    calls.push_back({.operands = {value(i), momentum_[i], gradient(i), scale},
                     .scalars = {.lr = RateOf(i, lr),
                                 .momentum = options_.momentum,
                                 .weight_decay = DecayOf(i, options_.weight_decay)}});
  }
  CallEach(options_.nesterov ? kNesterovUpdate : kMomentumUpdate, calls);
}

std::vector<std::pair<std::string, DTensor>> Sgd::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendMoment("momentum", momentum_, &state);
  return state;
}

}  // namespace weft
