#include "dtensor/optim/optimizer.h"

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/host_memory.h"
#include "dtensor/optim/tied_names.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {
namespace {

// Of parameters whose changed pieces are brought or gathered together.
constexpr int64_t kBytesAtATime = 25 << 20;

int64_t PieceBytes(const Parameter& parameter) { return parameter.at_rest().impl()->piece().num_bytes(); }

// The first of them, as many as are brought together.
absl::Span<const int> SomeOf(absl::Span<const int> indices, const std::vector<Parameter*>& parameters) {
  size_t count = 0;
  for (int64_t num_bytes = 0; count < indices.size() && num_bytes < kBytesAtATime; ++count) {
    num_bytes += PieceBytes(*parameters[indices[count]]);
  }
  return indices.first(count);
}

}  // namespace

Optimizer::Optimizer(std::vector<Parameter*> parameters, absl::string_view name,
                     absl::Span<const ParameterGroup> groups)
    : parameters_(WithoutTiedNames(parameters)), groups_(ResolveGroups(parameters_, groups, name)) {
  if (parameters_.empty()) return;
  const IntrusivePtr<MeshContext> context = parameters_[0]->at_rest().context()->DeviceSide();
  const MemoryKindGuard kind(*context->allocator(), MemoryKind::kState);
  updates_ = Full(context, DType::kI64, Shape(), 0);
}

HookHandle Optimizer::AddBeforeStep(std::function<void(Optimizer& optimizer)> hook) {
  WEFT_REQUIRE(hook != nullptr, "AddBeforeStep: expected a function, got an empty one");
  return before_hooks_.Add(std::move(hook));
}

HookHandle Optimizer::AddAfterStep(std::function<void(Optimizer& optimizer)> hook) {
  WEFT_REQUIRE(hook != nullptr, "AddAfterStep: expected a function, got an empty one");
  return after_hooks_.Add(std::move(hook));
}

void Optimizer::Step(double lr, const DTensor& gradient_scale) {
  for (const auto& hook : before_hooks_.hooks()) hook(*this);
  StepBetweenHooks(lr, gradient_scale);
  for (const auto& hook : after_hooks_.hooks()) hook(*this);
}

void Optimizer::StepBetweenHooks(double lr, const DTensor& gradient_scale) {
  std::vector<int> indices, on_host;
  values_.clear();  // of a step that failed
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->grad().defined()) continue;
    (parameters_[i]->memory().state_on_host ? on_host : indices).push_back(static_cast<int>(i));
  }
  // Of a model of which other ranks have other parts, this one may be the only one without a gradient: updates count alike.
  const bool is_part = !parameters_.empty() && parameters_[0]->model_context();
  if (indices.empty() && on_host.empty() && !is_part) return;
  const IntrusivePtr<MeshContext>& context = updates_.context();
  const NoGradGuard no_grad(context->state());
  const AutocastGuard off(context->state(), std::nullopt);  // which is for the model
  const DTensor scale =
      gradient_scale.defined() ? ToDevice(gradient_scale) : Full(context, DType::kF32, Shape(), 1);
  Call(kCountUpdate, {updates_, scale});
  if (!indices.empty()) UpdateThere(indices, lr, scale);
  if (on_host.empty()) return;
  updates_there_ = ToHost(updates_);
  const absl::Cleanup forget = [&] { updates_there_ = DTensor(); };  // after a step that fails, too
  const DTensor scale_there = ToHost(scale);
  // Beside a GPU the values of the next are on their way to the host while those before are updated.
  const bool brings = !ComputesOnHost(*context);
  const auto bring = [&](absl::Span<const int> ahead) {
    for (const int i : ahead) values_[i] = parameters_[i]->UpdatedPiece();
  };
  values_.resize(parameters_.size());
  absl::Span<const int> left = on_host;
  absl::Span<const int> now = SomeOf(left, parameters_);
  if (brings) bring(now);
  while (!now.empty()) {
    left.remove_prefix(now.size());
    const absl::Span<const int> next = SomeOf(left, parameters_);
    if (brings) bring(next);
    UpdateThere(now, lr, scale_there);
    now = next;
  }
}

void Optimizer::UpdateThere(absl::Span<const int> indices, double lr, const DTensor& scale) {
  values_.resize(parameters_.size());
  gradients_.resize(parameters_.size());
  for (const int i : indices) {
    if (!values_[i].defined()) values_[i] = parameters_[i]->UpdatedPiece();
    gradients_[i] = parameters_[i]->grad().Redistribute(values_[i].layout());
  }
  Update(indices, lr, scale);
  gradients_.clear();
  TakeUpdates(indices);
  for (const int i : indices) values_[i] = DTensor();
  for (const int i : indices) parameters_[i]->EndUpdate();
}

// In the order in which forward reads them, for the most part, so that it need not wait for all.
void Optimizer::TakeUpdates(absl::Span<const int> indices) {
  std::vector<Parameter*> parameters;
  std::vector<DTensor> pieces;
  int64_t num_bytes = 0;
  const auto take = [&] {
    Parameter::TakeUpdates(parameters, pieces);
    parameters.clear();
    pieces.clear();
    num_bytes = 0;
  };
  for (const int i : indices) {
    if (values_[i].impl() == parameters_[i]->at_rest().impl()) continue;
    parameters.push_back(parameters_[i]);
    pieces.push_back(std::move(values_[i]));
    num_bytes += PieceBytes(*parameters_[i]);
    if (num_bytes >= kBytesAtATime) take();
  }
  take();
}

std::vector<std::pair<std::string, DTensor>> Optimizer::State() const {
  std::vector<std::pair<std::string, DTensor>> state = Moments();
  if (updates_.defined()) state.push_back({"updates", updates_});
  return state;
}

void Optimizer::ZeroGrad() {
  for (Parameter* parameter : parameters_) parameter->ClearGrad();
}

std::vector<DTensor> Optimizer::MakeMoment() const {
  return MakeMoment([](int) { return true; });
}

std::vector<DTensor> Optimizer::MakeMoment(absl::FunctionRef<bool(int index)> keeps) const {
  std::vector<DTensor> zeros(parameters_.size());
  for (int i = 0; i < static_cast<int>(zeros.size()); ++i) {
    if (keeps(i))
      zeros[i] = MakeState(i, parameters_[i]->at_rest().type(), parameters_[i]->layouts().of_state());
  }
  return zeros;
}

DTensor Optimizer::MakeState(int index, const TensorType& type, const Layout& layout) const {
  const IntrusivePtr<MeshContext> context = parameters_[index]->state_context();
  const MemoryKindGuard kind(*context->allocator(), MemoryKind::kState);
  const PathGuard path(context->state(), parameters_[index]->leaf().path_id());
  return Full(context, type.dtype, type.shape, 0, layout);
}

void Optimizer::AppendMoment(absl::string_view name, const std::vector<DTensor>& moment,
                             std::vector<std::pair<std::string, DTensor>>* state) const {
  for (size_t i = 0; i < moment.size(); ++i) {
    if (moment[i].defined()) state->push_back({absl::StrCat(parameters_[i]->path(), ".", name), moment[i]});
  }
}

DTensor Optimizer::ScaledGradient(int index, const DTensor& scale) const {
  const DType dtype = gradient(index).dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  return Mul(Cast(gradient(index), dtype), Cast(scale, dtype));
}

double Optimizer::DecayOf(int index, double weight_decay) const {
  return parameters_[index]->spec().decays ? groups_[index].weight_decay.value_or(weight_decay) : 0;
}

}  // namespace weft
