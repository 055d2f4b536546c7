#include "dtensor/optim/optimizer.h"

#include "dtensor/functions.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {
namespace {

// A zero tensor that lies as the parameter at rest, in memory of its module.
DTensor ZerosLike(const Parameter& parameter) {
  const DTensor& value = parameter.at_rest();
  const PathGuard path(value.context()->state(), value.impl()->node->path_id());
  return Full(value.context(), value.dtype(), value.shape(), 0, value.layout());
}

std::vector<DTensor> ZerosLike(const std::vector<Parameter*>& parameters) {
  std::vector<DTensor> zeros;
  for (const Parameter* parameter : parameters) zeros.push_back(ZerosLike(*parameter));
  return zeros;
}

// What `weight_decay` is for this parameter.
double DecayOf(const Parameter& parameter, double weight_decay) {
  return parameter.spec().decays ? weight_decay : 0;
}

void AppendState(const std::vector<Parameter*>& parameters, const std::vector<DTensor>& tensors,
                 absl::string_view name, std::vector<std::pair<std::string, DTensor>>* out) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    out->push_back({absl::StrCat(parameters[i]->path(), ".", name), tensors[i]});
  }
}

}  // namespace

Optimizer::Optimizer(std::vector<Parameter*> parameters) : parameters_(std::move(parameters)) {
  if (parameters_.empty()) return;
  updates_ = Full(parameters_[0]->at_rest().context(), DType::kI64, Shape(), 0);
}

void Optimizer::Step(double lr, const DTensor& gradient_scale) {
  std::vector<int> indices;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->grad().defined()) indices.push_back(static_cast<int>(i));
  }
  if (indices.empty()) return;
  const IntrusivePtr<MeshContext>& context = parameters_[indices[0]]->at_rest().context();
  const NoGradGuard no_grad(context->state());
  const DTensor scale = gradient_scale.defined() ? gradient_scale : Full(context, DType::kF32, Shape(), 1);
  Call(kCountUpdate, {updates_, scale});
  Update(indices, lr, scale);
}

std::vector<std::pair<std::string, DTensor>> Optimizer::State() const {
  std::vector<std::pair<std::string, DTensor>> state = Moments();
  if (updates_.defined()) state.push_back({"updates", updates_});
  return state;
}

void Optimizer::ZeroGrad() {
  for (Parameter* parameter : parameters_) parameter->ClearGrad();
}

Sgd::Sgd(std::vector<Parameter*> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  if (options.momentum != 0) momentum_ = ZerosLike(this->parameters());
}

void Sgd::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  if (momentum_.empty()) {
    std::vector<EachCall<SgdScalars>> calls;
    calls.reserve(indices.size());
    for (const int i : indices) {
      const Parameter& parameter = *parameters()[i];
      calls.push_back({.operands = {parameter.at_rest(), parameter.grad(), scale},
                       .scalars = {.lr = lr, .weight_decay = DecayOf(parameter, options_.weight_decay)}});
    }
    CallEach(kSgdUpdate, calls);
    return;
  }
  std::vector<EachCall<MomentumScalars>> calls;
  calls.reserve(indices.size());
  for (const int i : indices) {
    const Parameter& parameter = *parameters()[i];
    calls.push_back({.operands = {parameter.at_rest(), momentum_[i], parameter.grad(), scale},
                     .scalars = {.lr = lr,
                                 .momentum = options_.momentum,
                                 .weight_decay = DecayOf(parameter, options_.weight_decay)}});
  }
  CallEach(kMomentumUpdate, calls);
}

std::vector<std::pair<std::string, DTensor>> Sgd::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendState(parameters(), momentum_, "momentum", &state);
  return state;
}

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters)),
      options_(options),
      first_(ZerosLike(this->parameters())),
      second_(ZerosLike(this->parameters())) {}

void AdamW::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  const DTensor rates =
      Call(kAdamWRates, {updates()}, {}, {.lr = lr, .beta1 = options_.beta1, .beta2 = options_.beta2});
  std::vector<EachCall<AdamWScalars>> calls;
  calls.reserve(indices.size());
  for (const int i : indices) {
    const Parameter& parameter = *parameters()[i];
    calls.push_back({.operands = {parameter.at_rest(), first_[i], second_[i], parameter.grad(), scale, rates},
                     .scalars = {.lr = lr,
                                 .beta1 = options_.beta1,
                                 .beta2 = options_.beta2,
                                 .eps = options_.eps,
                                 .weight_decay = DecayOf(parameter, options_.weight_decay)}});
  }
  CallEach(kAdamWUpdate, calls);
}

std::vector<std::pair<std::string, DTensor>> AdamW::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendState(parameters(), first_, "m", &state);
  AppendState(parameters(), second_, "v", &state);
  return state;
}

}  // namespace weft
