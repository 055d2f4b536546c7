#include "dtensor/optim/adamw.h"

#include "dtensor/dispatch.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options)
    : AdamW(std::move(parameters), options, "AdamW",
            [](const Parameter&, const ParameterGroup&) { return true; }) {
  RequireNoMatrices(options.groups, "AdamW");
}

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options, absl::string_view name,
             absl::FunctionRef<bool(const Parameter&, const ParameterGroup&)> keeps)
    : Optimizer(std::move(parameters), name, options.groups), options_(options) {
  RequireBetas(options.beta1, options.beta2, name);
  RequireEps(options.eps, name);
  RequireDecay(options.weight_decay, name);
  const auto keeps_index = [&](int i) { return keeps(*this->parameters()[i], group(i)); };
  first_ = MakeMoment(keeps_index);
  second_ = MakeMoment(keeps_index);
  for (size_t i = 0; i < this->parameters().size(); ++i) {
    const ParameterGroup& group = this->group(static_cast<int>(i));
    rates_.Add({.lr_scale = group.lr_scale.value_or(1),
                .beta1 = group.beta1.value_or(options.beta1),
                .beta2 = group.beta2.value_or(options.beta2)});
  }
}

void AdamW::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  std::vector<WithMoments> parameters;
  parameters.reserve(indices.size());
  for (const int i : indices) parameters.push_back({.index = i, .m = first_[i], .v = second_[i]});
  UpdateEach(parameters, lr, scale);
}

void AdamW::UpdateEach(absl::Span<const WithMoments> parameters, double lr, const DTensor& scale) {
  rates_.Begin(updates(), lr);
  std::vector<EachCall<AdamWScalars>> calls;
  calls.reserve(parameters.size());
  for (const WithMoments& of : parameters) {
    const int i = of.index;
    const AdamKind& kind = rates_.kind(i);
    calls.push_back({.operands = {value(i), of.m, of.v, gradient(i), scale, rates_.Of(i)},
                     .scalars = {.lr = RateOf(i, lr),
                                 .beta1 = kind.beta1,
                                 .beta2 = kind.beta2,
                                 .eps = options_.eps,
                                 .weight_decay = DecayOf(i, options_.weight_decay)}});
  }
  CallEach(kAdamWUpdate, calls);
  rates_.End();
}

std::vector<std::pair<std::string, DTensor>> AdamW::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendMoment("m", first_, &state);
  AppendMoment("v", second_, &state);
  return state;
}

}  // namespace weft
