#include "dtensor/optim/optimizer.h"

#include "dtensor/functions.h"
#include "ops/optimizer_update.h"

namespace weft {
namespace {

// A zero tensor that lies as the parameter at rest.
DTensor ZerosLike(const Parameter& parameter) {
  const DTensor& value = parameter.at_rest();
  return Full(value.context(), value.dtype(), value.shape(), 0, value.layout());
}

std::vector<DTensor> ZerosLike(const std::vector<Parameter*>& parameters) {
  std::vector<DTensor> zeros;
  for (const Parameter* parameter : parameters) zeros.push_back(ZerosLike(*parameter));
  return zeros;
}

void AppendState(const std::vector<Parameter*>& parameters, const std::vector<DTensor>& tensors,
                 absl::string_view name, std::vector<std::pair<std::string, DTensor>>* out) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    out->push_back({absl::StrCat(parameters[i]->path(), ".", name), tensors[i]});
  }
}

}  // namespace

void Optimizer::Step(double lr, const DTensor& gradient_scale) {
  ++num_steps_;
  DTensor scale = gradient_scale;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    if (!parameter.grad().defined()) continue;
    const DTensor& value = parameter.at_rest();
    NoGradGuard no_grad(value.context()->state());
    if (!scale.defined()) scale = Full(value.context(), DType::kF32, Shape(), 1);
    Update(static_cast<int>(i), parameter, lr, scale);
  }
}

void Optimizer::ZeroGrad() {
  for (Parameter* parameter : parameters_) parameter->ClearGrad();
}

Sgd::Sgd(std::vector<Parameter*> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  if (options.momentum != 0) momentum_ = ZerosLike(this->parameters());
}

void Sgd::Update(int index, Parameter& parameter, double lr, const DTensor& scale) {
  if (momentum_.empty()) {
    Call(kSgdUpdate, {parameter.at_rest(), parameter.grad(), scale}, {},
         {.lr = lr, .weight_decay = options_.weight_decay});
    return;
  }
  Call(kMomentumUpdate, {parameter.at_rest(), momentum_[index], parameter.grad(), scale}, {},
       {.lr = lr, .momentum = options_.momentum, .weight_decay = options_.weight_decay});
}

std::vector<std::pair<std::string, DTensor>> Sgd::State() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendState(parameters(), momentum_, "momentum", &state);
  return state;
}

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters)),
      options_(options),
      first_(ZerosLike(this->parameters())),
      second_(ZerosLike(this->parameters())) {}

void AdamW::Update(int index, Parameter& parameter, double lr, const DTensor& scale) {
  const bool decays = parameter.spec().shape.ndim() >= 2;
  Call(kAdamWUpdate, {parameter.at_rest(), first_[index], second_[index], parameter.grad(), scale}, {},
       {.lr = lr,
        .beta1 = options_.beta1,
        .beta2 = options_.beta2,
        .eps = options_.epsilon,
        .weight_decay = decays ? options_.weight_decay : 0,
        .step = num_steps()});
}

std::vector<std::pair<std::string, DTensor>> AdamW::State() const {
  std::vector<std::pair<std::string, DTensor>> state;
  AppendState(parameters(), first_, "m", &state);
  AppendState(parameters(), second_, "v", &state);
  return state;
}

}  // namespace weft
