#include "dtensor/nn/module.h"

#include <algorithm>
#include <cmath>

#include "dtensor/redistribution/redistribute.h"

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
  const ModuleCall call(*this);
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

ModuleCall::ModuleCall(Module& module)
    : module_(module),
      path_(module.context()->state(), module.path_id_),
      kind_(*module.context()->allocator(), KindOfForward(*module.context())) {
  if (module.parent_ == nullptr) module.context()->state().ResetCallNumbers();
}

DTensor ModuleCall::Input(const DTensor& x) const { return Pin(x, module_.border_.input); }

DTensor ModuleCall::Output(const DTensor& y) const {
  if (module_.context()->state().check_finite())
    CheckFinite(y, absl::StrCat("output of module '", module_.path(), "'"));
  return Pin(y, module_.border_.output);
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
