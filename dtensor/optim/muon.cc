#include "dtensor/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "ops/optimizer/optimizer_update.h"

namespace weft {
namespace {

AdamWOptions WithGroups(const MuonOptions& options) {
  WEFT_REQUIRE(options.adamw.groups.empty(),
               "Muon: expected no groups in its AdamW's options: groups are Muon's");
  AdamWOptions adamw = options.adamw;
  adamw.groups = options.groups;
  return adamw;
}

// How a stack of matrices that lie as `layout` is to lie: what splits a matrix splits the stack instead.
// `roles`: of a matrix.
Layout WholeMatrices(const Layout& layout, absl::string_view roles) {
  Layout whole = layout;
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout.IsShard(axis) && roles[layout.shard_dim(axis) - 1] != 'b') whole = whole.WithShard(axis, 0);
  }
  return whole;
}

// `layout` with a dim in front that no axis splits.
Layout Stacked(const Layout& layout) {
  Layout stacked(layout.ndim() + 1, layout.num_axes());
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    for (const int axis : layout.ShardAxes(dim)) stacked = stacked.WithShard(axis, dim + 1);
  }
  return stacked;
}

// How many matrices that lie as `layout` a stack takes, so that each of the ranks that split them gets one.
int64_t StackSize(const DeviceMesh& mesh, const Layout& layout, absl::string_view roles) {
  int64_t size = 1;
  for (const int axis : WholeMatrices(Stacked(layout), roles).ShardAxes(0)) size *= mesh.axis_size(axis);
  return size;
}

// Each of `updates`, which have one type and layout, made orthogonal.
std::vector<DTensor> Orthogonalize(const std::vector<DTensor>& updates, absl::string_view roles,
                                   const MuonOptions& options) {
  const DType dtype = options.products.value_or(updates[0].dtype());
  const Layout stacked = Stacked(updates[0].layout());
  // [n, ...], of which the axes that split a matrix each take some
  const DTensor here = Cast(Stack(updates, 0), dtype).Redistribute(stacked);
  const DTensor whole = here.Redistribute(WholeMatrices(stacked, roles));
  const DTensor made = NewtonSchulz(whole, absl::StrCat("b", roles), options.newton_schulz);
  return Unbind(Cast(made.Redistribute(stacked), updates[0].dtype()), 0);
}

}  // namespace

Muon::Muon(std::vector<Parameter*> parameters, const MuonOptions& options)
    : AdamW(std::move(parameters), WithGroups(options), "Muon",
            [](const Parameter&, const ParameterGroup& group) { return !group.matrix; }),
      options_(options),
      momentum_(MakeMoment([this](int i) { return !keeps_moments(i); })) {
  RequireDecay(options.weight_decay, "Muon");
  WEFT_REQUIRE(options.momentum >= 0 && options.momentum < 1,
               "Muon: expected a momentum of at least 0 and below 1, got ", options.momentum);
  for (size_t i = 0; i < this->parameters().size(); ++i) {
    const ParameterGroup& group = this->group(static_cast<int>(i));
    const Shape& shape = this->parameters()[i]->spec().shape;
    WEFT_REQUIRE(!group.matrix || static_cast<int>(group.matrix->size()) == shape.ndim(), "Muon: parameter '",
                 group.path, "' has ", shape.ndim(), " dims and the matrix '", *group.matrix,
                 "': expected a letter per dim");
  }
}

std::vector<DTensor> Muon::MomentumUpdates(absl::Span<const int> matrices, const DTensor& scale) {
  const DTensor zero = Scale(Cast(scale, DType::kF64), 0);  // or NaN, if the update is to skip itself
  const DTensor weight = Add(zero, 1 - options_.momentum);
  std::vector<DTensor> gradients;
  std::vector<EachCall<>> calls;
  for (const int i : matrices) {
    gradients.push_back(Cast(ScaledGradient(i, scale), gradient(i).dtype()));
    calls.push_back({.operands = {momentum_[i], gradients.back(), weight}});
  }
  CallEach(kLerpUpdate, calls);
  std::vector<DTensor> updates;
  for (size_t k = 0; k < matrices.size(); ++k) {
    const DTensor& momentum = momentum_[matrices[k]];
    if (!options_.nesterov) {
      updates.push_back(momentum);
      continue;
    }
    const DTensor gradient = Cast(gradients[k], momentum.dtype());
    updates.push_back(Add(gradient, Scale(Sub(momentum, gradient), options_.momentum)));
  }
  return updates;
}

double Muon::AdjustmentOf(int index) const {
  const Shape& shape = parameters()[index]->spec().shape;
  double in = 1, out = 1;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    const char role = (*group(index).matrix)[dim];
    if (role == 'i') in *= static_cast<double>(shape[dim]);
    if (role == 'o') out *= static_cast<double>(shape[dim]);
  }
  switch (options_.adjust) {
    case MuonAdjust::kOriginal:
      return std::sqrt(std::max(1.0, out / in));
    case MuonAdjust::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(out, in));
    case MuonAdjust::kSpectralUnclamped:
      return std::sqrt(out / in);
    case MuonAdjust::kNone:
      return 1;
  }
  return 1;
}

// Positions in `matrices`: stacks of those that are of one kind, in order, each as large as ranks split it.
std::vector<std::vector<size_t>> Muon::StacksOf(absl::Span<const int> matrices) const {
  std::vector<std::vector<size_t>> stacks;
  for (size_t k = 0; k < matrices.size(); ++k) {
    const DTensor& momentum = momentum_[matrices[k]];
    const std::string& roles = *group(matrices[k]).matrix;
    const auto takes = [&](const std::vector<size_t>& stack) {
      const int other = matrices[stack[0]];
      return *group(other).matrix == roles && momentum_[other].type() == momentum.type() &&
             momentum_[other].layout() == momentum.layout() &&
             std::ssize(stack) < StackSize(momentum.context()->mesh(), momentum.layout(), roles);
    };
    const auto found = std::find_if(stacks.begin(), stacks.end(), takes);
    (found == stacks.end() ? stacks.emplace_back() : *found).push_back(k);
  }
  return stacks;
}

void Muon::Update(absl::Span<const int> indices, double lr, const DTensor& scale) {
  std::vector<int> matrices;
  std::vector<int> others;
  for (const int i : indices) (keeps_moments(i) ? others : matrices).push_back(i);
  if (!others.empty()) AdamW::Update(others, lr, scale);
  if (matrices.empty()) return;
  const PurposeGuard purpose(updates().context()->state(), Purpose::kParam);
  const std::vector<DTensor> momenta = MomentumUpdates(matrices, scale);
  const DTensor one = Add(Scale(scale, 0), 1);  // or NaN
  for (const std::vector<size_t>& stack : StacksOf(matrices)) {
    std::vector<DTensor> members;
    for (const size_t k : stack) members.push_back(momenta[k]);
    const std::vector<DTensor> made = Orthogonalize(members, *group(matrices[stack[0]]).matrix, options_);
    for (size_t m = 0; m < stack.size(); ++m) {
      const int i = matrices[stack[m]];
      // u has a rate of its own, and p decays by the step's.
      const double adjustment = AdjustmentOf(i);
      Call(
          kSgdUpdate, {value(i), made[m], one}, {},
          {.lr = RateOf(i, lr) * adjustment, .weight_decay = DecayOf(i, options_.weight_decay) / adjustment});
    }
  }
}

std::vector<std::pair<std::string, DTensor>> Muon::Moments() const {
  std::vector<std::pair<std::string, DTensor>> state = AdamW::Moments();
  AppendMoment("momentum", momentum_, &state);
  return state;
}

}  // namespace weft
