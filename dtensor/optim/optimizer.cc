#include "dtensor/optim/optimizer.h"

#include <algorithm>
#include <numeric>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "dtensor/host_memory.h"
#include "dtensor/optim/tied_names.h"
#include "mesh/shard_math.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {
namespace {

// Of parameters that are updated together, where others go on their way meanwhile.
constexpr int64_t kMostBytes = 25 << 20;
constexpr int64_t kLeastBytes = 1 << 20;
constexpr int64_t kParts = 10;

// The largest piece that a rank has of it: the same on every rank, so that all divide parameters alike.
int64_t PieceBytesOf(const Parameter& parameter) {
  const DTensor& value = parameter.at_rest();
  return MaxLocalElements(value.shape(), value.layout(), value.context()->mesh()) * ItemSize(value.dtype());
}

// That of each of `indices`; by index.
std::vector<int64_t> PieceBytes(absl::Span<const int> indices, const std::vector<Parameter*>& parameters) {
  std::vector<int64_t> bytes(parameters.size());
  for (const int i : indices) bytes[i] = PieceBytesOf(*parameters[i]);
  return bytes;
}

// The first of them, which hold `num_bytes` or are all.
absl::Span<const int> SomeOf(absl::Span<const int> indices, const std::vector<int64_t>& piece_bytes,
                             int64_t num_bytes) {
  size_t count = 0;
  for (int64_t held = 0; count < indices.size() && held < num_bytes; ++count) {
    held += piece_bytes[indices[count]];
  }
  return indices.first(count);
}

// Whether ranks gather some of them while others are updated.
bool AnySends(absl::Span<const int> indices, const std::vector<Parameter*>& parameters) {
  return std::any_of(indices.begin(), indices.end(), [&](int i) { return parameters[i]->sends_updates(); });
}

// How much of what lies on the device is updated at a time, where any of it goes on its way.
int64_t PartBytes(const std::vector<int64_t>& piece_bytes) {
  const int64_t all = std::accumulate(piece_bytes.begin(), piece_bytes.end(), int64_t{0});
  return std::min(kMostBytes, std::max(kLeastBytes, all / kParts));
}

// Those whose copies are read first come first, so that these are the first to be gathered.
void SortByReading(const std::vector<Parameter*>& parameters, std::vector<int>* indices) {
  std::vector<int> order(parameters.size());
  for (const int i : *indices) order[i] = parameters[i]->read_order();
  std::stable_sort(indices->begin(), indices->end(), [&](int a, int b) { return order[a] < order[b]; });
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
  const bool in_parts = updates_in_parts() && AnySends(indices, parameters_);
  std::vector<int64_t> piece_bytes;
  int64_t part_bytes = 0;
  if (in_parts) {
    piece_bytes = PieceBytes(indices, parameters_);
    part_bytes = PartBytes(piece_bytes);
    SortByReading(parameters_, &indices);
  }
  for (absl::Span<const int> left = indices; !left.empty();) {
    const absl::Span<const int> now = in_parts ? SomeOf(left, piece_bytes, part_bytes) : left;
    UpdateThere(now, lr, scale);
    left.remove_prefix(now.size());
  }
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
  piece_bytes = PieceBytes(on_host, parameters_);
  absl::Span<const int> left = on_host;
  absl::Span<const int> now = SomeOf(left, piece_bytes, kMostBytes);
  if (brings) bring(now);
  while (!now.empty()) {
    left.remove_prefix(now.size());
    const absl::Span<const int> next = SomeOf(left, piece_bytes, kMostBytes);
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

void Optimizer::TakeUpdates(absl::Span<const int> indices) {
  std::vector<int> moved;
  for (const int i : indices) {
    if (values_[i].impl() != parameters_[i]->at_rest().impl()) moved.push_back(i);
  }
  if (moved.empty()) return;
  const std::vector<int64_t> piece_bytes = PieceBytes(moved, parameters_);
  for (absl::Span<const int> left = moved; !left.empty();) {
    const absl::Span<const int> now = SomeOf(left, piece_bytes, kMostBytes);
    std::vector<Parameter*> parameters;
    std::vector<DTensor> pieces;
    for (const int i : now) {
      parameters.push_back(parameters_[i]);
      pieces.push_back(std::move(values_[i]));
    }
    Parameter::TakeUpdates(parameters, pieces);
    left.remove_prefix(now.size());
  }
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
