#include "dtensor/nn/module.h"

#include <algorithm>
#include <cmath>

#include "dtensor/autograd/recompute.h"
#include "dtensor/dispatch.h"
#include "dtensor/redistribution/redistribute.h"
#include "ops/elementwise/cast.h"

namespace weft {
namespace {

DTensor Pin(const DTensor& x, const std::vector<BorderPin>& pins) {
  if (pins.empty()) return x;
  Layout layout = x.layout();
  RedistributeOptions options;
  for (const BorderPin& pin : pins) {
    layout = layout.PlacedAlong(pin.axis, pin.value);
    if (pin.gradient) options.gradient.push_back({pin.axis, *pin.gradient});
  }
  return x.Redistribute(layout, options);
}

// What is cast to fewer bytes is so before it moves.
DTensor Cross(const DTensor& x, const std::optional<DType>& dtype, const std::vector<BorderPin>& pins) {
  if (!dtype || x.dtype() == *dtype || !IsFloating(x.dtype())) return Pin(x, pins);
  if (ItemSize(*dtype) < ItemSize(x.dtype())) return Pin(Call(kCast, {x}, {.dtype = *dtype}), pins);
  return Call(kCast, {Pin(x, pins)}, {.dtype = *dtype});
}

// Of what a forward makes: backward will read it, if there is to be one.
MemoryKind KindOfForward(MeshContext& context) {
  return context.state().grad_enabled() ? MemoryKind::kSaved : context.allocator()->kind();
}

}  // namespace

Module::Module(Module* parent, std::string name) : parent_(parent), name_(std::move(name)) {
  WEFT_REQUIRE(parent != nullptr && !name_.empty(), "a child module needs a parent and a name");
  WEFT_REQUIRE(parent->child_names_.insert(name_).second, "module '", parent->path(),
               "' already has a child '", name_, "'");
  parent->children_.push_back(this);
}

Module::~Module() {
  // A constructor may throw after this base has been made and registered.
  if (parent_ != nullptr) {
    parent_->child_names_.erase(name_);
    std::vector<Module*>& siblings = parent_->children_;
    // Members go last first, elements of a vector first first.
    siblings.erase(siblings.back() == this ? siblings.end() - 1
                                           : std::find(siblings.begin(), siblings.end(), this));
  }
  for (Module* child : children_) child->parent_ = nullptr;
}

std::string Module::path() const {
  if (parent_ == nullptr) return name_;
  const std::string parent = parent_->path();
  return parent.empty() ? name_ : absl::StrCat(parent, ".", name_);
}

DTensor Module::operator()(const DTensor& x) {
  if (recompute_ == nullptr || !Recomputes(context()->state(), *recompute_)) return Run(x);
  const auto run = [this, path = path(),
                    life = std::weak_ptr<bool>(life_)](const DTensors& inputs) -> DTensors {
    if (life.expired()) {
      Throw(absl::StatusCode::kFailedPrecondition, "module '", path,
            "' is gone: backward cannot compute it again");
    }
    return {Run(inputs[0])};
  };
  return Recompute(run, {x}, recompute_->keep)[0];
}

DTensor Module::Run(const DTensor& x) {
  const ModuleCall call(*this, /*is_unit=*/true);
  return call.Output(Forward(call.Input(x)));
}

DTensor Module::Forward(const DTensor& /*x*/) {
  Throw(absl::StatusCode::kUnimplemented, "module '", path(),
        "' does not take a single tensor: call it by its own signature");
}

std::vector<Module*> Module::AllModules() {
  std::vector<Module*> all;
  AppendModules(&all);
  return all;
}

void Module::AppendModules(std::vector<Module*>* modules) {
  modules->push_back(this);
  for (Module* child : children_) child->AppendModules(modules);
}

std::vector<Parameter*> Module::AllParameters() {
  std::vector<Parameter*> all = RegisteredParameters();
  std::erase_if(all, [](const Parameter* parameter) { return !parameter->is_here(); });
  return all;
}

std::vector<Parameter*> Module::RegisteredParameters() {
  std::vector<Parameter*> all;
  for (Module* module : AllModules()) {
    all.insert(all.end(), module->parameters_.begin(), module->parameters_.end());
  }
  return all;
}

const IntrusivePtr<MeshContext>& Module::context() const {
  if (!context_) {
    Throw(absl::StatusCode::kFailedPrecondition, "module '", path(),
          "' has no values yet: call Materialize or Parallelize on the model first");
  }
  return context_;
}

void Module::Bind(const IntrusivePtr<MeshContext>& context) {
  context_ = context;
  path_id_ = context->state().PathId(path());
}

ModuleCall::ModuleCall(Module& module, bool is_unit)
    : module_(module),
      path_(module.context()->state(), module.path_id_),
      kind_(*module.context()->allocator(), KindOfForward(*module.context())) {
  if (module.recompute_ != nullptr && !is_unit) {
    Throw(absl::StatusCode::kFailedPrecondition, "module '", module.path(),
          "' cannot be recomputed as a unit: it is not called with a single tensor; recompute modules below "
          "it");
  }
  if (module.parent_ == nullptr) module.context()->state().ResetCallNumbers();
}

DTensor ModuleCall::Input(const DTensor& x) const {
  return Cross(x, module_.border_.input_dtype, module_.border_.input);
}

DTensor ModuleCall::Output(const DTensor& y) const {
  if (module_.context()->state().check_finite())
    CheckFinite(y, absl::StrCat("output of module '", module_.path(), "'"));
  return Cross(y, module_.border_.output_dtype, module_.border_.output);
}

bool Recomputes(const RankState& state, const ModuleRecompute& recompute) {
  return state.grad_enabled() && (recompute.last_microbatch || !state.syncs_gradients());
}

void CheckFinite(const DTensor& x, absl::string_view what) {
  if (!IsFloating(x.dtype())) return;
  const std::vector<double> values = x.ToLocal().ToVector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    Throw(absl::StatusCode::kDataLoss, what, " (", x.ToString(), ") is not finite: local element ", i, " is ",
          values[i]);
  }
}

void Materialize(Module& root, const IntrusivePtr<MeshContext>& context, const MaterializeOptions& options) {
  for (Module* module : root.AllModules()) module->Bind(context);
  for (Parameter* parameter : root.AllParameters()) {
    const Layout replicated(parameter->spec().shape.ndim(), context->mesh().num_axes());
    parameter->Materialize(context, options.dtype, options.compute_dtype.value_or(options.dtype),
                           {.at_rest = replicated, .compute = replicated});
  }
}

// What a parameter asks of its module.

Parameter::Parameter(Module* owner, std::string name, ParameterSpec spec)
    : owner_(owner), name_(std::move(name)), spec_(std::move(spec)) {
  WEFT_REQUIRE(owner->parameter_names_.insert(name_).second, "module '", owner->path(),
               "' already has a parameter '", name_, "'");
  owner->parameters_.push_back(this);
}

std::string Parameter::owner_path() const { return owner_->path(); }

std::string Parameter::path() const {
  const std::string owner = owner_path();
  return owner.empty() ? name_ : absl::StrCat(owner, ".", name_);
}

}  // namespace weft
