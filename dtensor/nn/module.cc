#include "dtensor/nn/module.h"

#include <algorithm>
#include <cmath>

#include "dtensor/autograd/recompute.h"
#include "dtensor/dispatch.h"
#include "dtensor/redistribution/redistribute.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "ops/elementwise/cast.h"

namespace weft {
namespace {

// Of the tensor of that number, of those that cross the border.
DTensor Pin(const DTensor& x, const std::vector<BorderPin>& pins, int index) {
  if (pins.empty()) return x;
  Layout layout = x.layout();
  RedistributeOptions options;
  for (const BorderPin& pin : pins) {
    if (!pin.Pins(index, x.ndim())) continue;
    layout = layout.PlacedAlong(pin.axis, pin.value);
    if (pin.gradient) options.gradient.push_back({pin.axis, *pin.gradient});
  }
  return x.Redistribute(layout, options);
}

// What is cast to fewer bytes is so before it moves, but for terms of a sum that the dtype may not hold.
DTensor Cross(const DTensor& x, const std::optional<DType>& dtype, const std::vector<BorderPin>& pins,
              int index) {
  if (!dtype || x.dtype() == *dtype || !IsFloating(x.dtype())) return Pin(x, pins, index);
  const bool lies_well = CastsAsItLies(x.dtype(), *dtype, x.layout());
  if (lies_well && ItemSize(*dtype) < ItemSize(x.dtype())) {
    return Pin(Call(kCast, {x}, {.dtype = *dtype}), pins, index);
  }
  const DTensor pinned = Pin(x, pins, index);
  const DTensor wide = lies_well ? pinned : pinned.Redistribute(WithoutPartial(pinned.layout()));
  return Call(kCast, {wide}, {.dtype = *dtype});
}

// Whether a rank's term may be infinite where the value is not: that of an empty piece is.
bool IsPartialExtremum(const Layout& layout) {
  const AxisList axes = layout.PartialAxes();
  return std::any_of(axes.begin(), axes.end(), [&](int axis) {
    return layout.partial_op(axis) == ReduceOp::kMax || layout.partial_op(axis) == ReduceOp::kMin;
  });
}

// What the hooks make of a tensor that crosses a border.
DTensor AfterHooks(const HookList<DTensor(Module&, const DTensor&)>& hooks, Module& module,
                   const DTensor& x) {
  if (hooks.empty()) return x;
  DTensor y = x;
  for (const Module::ForwardHook& hook : hooks.hooks()) {
    DTensor changed = hook(module, y);
    if (changed.defined()) y = std::move(changed);
  }
  return y;
}

// That none of a model's slots has a value, here or on other ranks.
template <class Slot>
void CheckIsSpec(absl::string_view kind, const std::vector<Slot*>& slots) {
  for (const Slot* slot : slots) {
    if (!slot->materialized() && slot->is_here()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, kind, " '", slot->path(), "' already has a value",
          slot->is_here() ? "" : ", on other ranks");
  }
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
  for (Parameter* slot : parameters_) slot->owner_ = nullptr;
  for (Parameter* slot : tied_) slot->owner_ = nullptr;
  for (ModuleBuffer* slot : buffers_) slot->owner_ = nullptr;
}

std::string Module::path() const {
  if (parent_ == nullptr) return name_;
  const std::string parent = parent_->path();
  return parent.empty() ? name_ : absl::StrCat(parent, ".", name_);
}

void Module::set_name(std::string name) {
  WEFT_REQUIRE(parent_ == nullptr, "module '", path(), "' has a name already: set_name is for a root");
  if (placed_.context) {
    Throw(absl::StatusCode::kFailedPrecondition, "set_name('", name,
          "'): the model has values already, which were drawn without it");
  }
  root_name_ = std::move(name);
}

std::string Module::full_path() const {
  const Module* root = this;
  while (root->parent_ != nullptr) root = root->parent_;
  const std::string own = path();
  if (root->root_name_.empty()) return own;
  return own.empty() ? root->root_name_ : absl::StrCat(root->root_name_, ".", own);
}

HookHandle Module::AddBeforeForward(ForwardHook hook) {
  WEFT_REQUIRE(hook != nullptr, "AddBeforeForward of '", path(), "': expected a function, got an empty one");
  return before_hooks_.Add(std::move(hook));
}

HookHandle Module::AddAfterForward(ForwardHook hook) {
  WEFT_REQUIRE(hook != nullptr, "AddAfterForward of '", path(), "': expected a function, got an empty one");
  return after_hooks_.Add(std::move(hook));
}

DTensor Module::operator()(const DTensor& x) {
  if (placed_.place != ModulePlace::kPart) return RunWhereItLies(x);
  return RunOnPart({x}, /*num_outputs=*/1,
                   [&](const DTensors& brought) -> DTensors { return {RunWhereItLies(brought[0])}; })[0];
}

DTensor Module::RunWhereItLies(const DTensor& x) {
  const SaveOnHostGuard saves(context()->state(), SavesOnHost());
  if (placed_.recompute == nullptr || !Recomputes(context()->state(), *placed_.recompute)) return Run(x);
  const auto run = [this](const DTensors& inputs) -> DTensors { return {Run(inputs[0])}; };
  return Recompute(WhileItLives(run), {x}, placed_.recompute->keep)[0];
}

std::function<DTensors(const DTensors&)> Module::WhileItLives(
    std::function<DTensors(const DTensors&)> run) const {
  return [run = std::move(run), path = path(),
          life = std::weak_ptr<bool>(life_)](const DTensors& inputs) -> DTensors {
    if (life.expired()) {
      Throw(absl::StatusCode::kFailedPrecondition, "module '", path,
            "' is gone: backward cannot compute it again");
    }
    return run(inputs);
  };
}

DTensor Module::Run(const DTensor& x) {
  const ModuleCall call(*this, ModuleCall::Body::kForward);
  return call.Output(Forward(call.Input(x)));
}

DTensor Module::Forward(const DTensor& /*x*/) {
  Throw(absl::StatusCode::kUnimplemented, "module '", path(),
        "' does not take a single tensor: call it by its own signature");
}

DTensors Module::ForwardTensors(const DTensors& /*inputs*/) {
  Throw(absl::StatusCode::kUnimplemented, "module '", path(),
        "' has no ForwardTensors, which CallModule calls where it is given no function");
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

std::vector<Parameter*> Module::TrainableParameters() {
  std::vector<Parameter*> all = AllParameters();
  std::erase_if(all, [](const Parameter* parameter) { return !parameter->trainable(); });
  return all;
}

std::vector<Parameter*> Module::TiedParameters() {
  std::vector<Parameter*> all;
  for (Module* module : AllModules()) {
    for (const Parameter* slot : module->tied_) {
      if (std::find(all.begin(), all.end(), slot->tied_to()) == all.end()) all.push_back(slot->tied_to());
    }
  }
  return all;
}

std::vector<ModuleBuffer*> Module::AllBuffers() {
  std::vector<ModuleBuffer*> all = RegisteredBuffers();
  std::erase_if(all, [](const ModuleBuffer* buffer) { return !buffer->is_here(); });
  return all;
}

std::vector<ModuleBuffer*> Module::RegisteredBuffers() {
  std::vector<ModuleBuffer*> all;
  for (Module* module : AllModules()) {
    all.insert(all.end(), module->buffers_.begin(), module->buffers_.end());
  }
  return all;
}

bool Module::SavesOnHost() const {
  const RankState& state = context()->state();
  return state.in_backward() ? state.saves_on_host() : placed_.saves_on_host.value_or(state.saves_on_host());
}

void Module::SetTraining(bool training) {
  for (Module* module : AllModules()) module->training_ = training;
}

void Module::set_trainable(bool trainable) {
  for (Module* module : AllModules()) {
    for (Parameter* parameter : module->parameters_) parameter->set_trainable(trainable);
    for (Parameter* slot : module->tied_) slot->set_trainable(trainable);
  }
}

const IntrusivePtr<MeshContext>& Module::context() const {
  if (!placed_.context) {
    Throw(absl::StatusCode::kFailedPrecondition, "module '", path(),
          "' has no values yet: call Materialize or Parallelize on the model first");
  }
  return placed_.context;
}

void Module::Bind(const IntrusivePtr<MeshContext>& context) {
  placed_.context = context;
  placed_.path_id = context->state().PathId(full_path());
}

ModuleCall::ModuleCall(Module& module, Body body)
    : module_(module),
      path_(module.context()->state(), module.placed_.path_id),
      training_(module.context()->state(), module.training_),
      saves_on_host_(module.context()->state(), module.SavesOnHost()),
      kind_(*module.context()->allocator(), KindOfForward(*module.context())),
      root_(module.context()->state(), module.parent_ == nullptr) {
  if (module.placed_.place == ModulePlace::kPart && body == Body::kHere) {
    Throw(absl::StatusCode::kFailedPrecondition, "module '", module.path(),
          "' lies on a part of the ranks, and the others cannot leave out what follows a ModuleCall: its "
          "operator() has to be a CallModule");
  }
  if (module.placed_.recompute != nullptr && body != Body::kForward) {
    Throw(
        absl::StatusCode::kFailedPrecondition, "module '", module.path(),
        "' cannot be recomputed as a unit: backward would outlive its operator(); move what it computes to a "
        "Forward or ForwardTensors, or recompute modules below it");
  }
}

DTensor ModuleCall::Input(const DTensor& x, int index) const {
  const ModuleBorder& border = module_.placed_.border;
  if (module_.placed_.place == ModulePlace::kWhole) [[unlikely]] {
    const DTensor brought = module_.Brought(x, border.input, border.input_dtype, index);
    return Cross(AfterHooks(module_.before_hooks_, module_, brought), border.input_dtype, border.input,
                 index);
  }
  return Cross(AfterHooks(module_.before_hooks_, module_, x), border.input_dtype, border.input, index);
}

DTensor ModuleCall::Output(const DTensor& result, int index) const {
  DTensor y = result;
  if (module_.placed_.place == ModulePlace::kWhole) [[unlikely]] {
    y = module_.Brought(y, module_.placed_.border.output, module_.placed_.border.output_dtype, index);
  }
  if (module_.context()->state().check_finite())
    CheckFinite(y, absl::StrCat("output of module '", module_.path(), "'"));
  return Cross(AfterHooks(module_.after_hooks_, module_, y), module_.placed_.border.output_dtype,
               module_.placed_.border.output, index);
}

bool Recomputes(const RankState& state, const ModuleRecompute& recompute) {
  return state.grad_enabled() && (recompute.last_microbatch || !state.syncs_gradients());
}

void CheckFinite(const DTensor& x, absl::string_view what) {
  if (!IsFloating(x.dtype())) return;
  const bool reduces = IsPartialExtremum(x.layout());
  const DTensor checked = reduces ? x.Redistribute(WithoutPartial(x.layout())) : x;
  const std::vector<double> values = checked.ToLocal().ToVector<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    Throw(absl::StatusCode::kDataLoss, what, " (", x.ToString(), ") is not finite: local element ", i, " is ",
          values[i]);
  }
}

void Materialize(Module& root, const IntrusivePtr<MeshContext>& context, const MaterializeOptions& options) {
  CheckIsSpec("parameter", root.RegisteredParameters());
  CheckIsSpec("buffer", root.RegisteredBuffers());
  for (Module* module : root.AllModules()) module->Bind(context);
  for (Parameter* parameter : root.AllParameters()) {
    const Layout replicated(parameter->spec().shape.ndim(), context->mesh().num_axes());
    parameter->Materialize(context, options.dtype, options.compute_dtype.value_or(options.dtype),
                           {.at_rest = replicated, .compute = replicated});
  }
  for (ModuleBuffer* buffer : root.AllBuffers()) {
    buffer->Materialize(context, ModuleBuffer::DefaultDType(options.dtype),
                        Layout(buffer->spec().shape.ndim(), context->mesh().num_axes()));
  }
}

}  // namespace weft
