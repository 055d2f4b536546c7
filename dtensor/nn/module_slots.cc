// What a parameter or a buffer asks of its module.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/module.h"

namespace weft {
namespace {

// Members go last first.
template <class Slot>
void EraseFrom(std::vector<Slot*>& slots, const Slot* slot) {
  slots.erase(slots.back() == slot ? slots.end() - 1 : std::find(slots.begin(), slots.end(), slot));
}

}  // namespace

Parameter::Parameter(Module* owner, std::string name, ParameterSpec spec)
    : owner_(owner), name_(std::move(name)), spec_(std::move(spec)) {
  WEFT_REQUIRE(owner->parameter_names_.insert(name_).second, "module '", owner->path(),
               "' already has a parameter '", name_, "'");
  owner->parameters_.push_back(this);
}

Parameter::~Parameter() {
  if (placed_.copy_source != nullptr) placed_.copy_source->Forget(placed_.copy_index);
  // A graph may hold it for longer.
  if (placed_.leaf) static_cast<LeafNode&>(*placed_.leaf).set_ready_hooks(nullptr);
  if (owner_ == nullptr) return;
  owner_->parameter_names_.erase(name_);
  EraseFrom(tied_to_ != nullptr ? owner_->tied_ : owner_->parameters_, this);
}

ModuleBuffer::ModuleBuffer(Module* owner, std::string name, BufferSpec spec)
    : owner_(owner), name_(std::move(name)), spec_(std::move(spec)) {
  WEFT_REQUIRE(owner->parameter_names_.insert(name_).second, "module '", owner->path(),
               "' already has a parameter or buffer '", name_, "'");
  owner->buffers_.push_back(this);
}

ModuleBuffer::~ModuleBuffer() {
  if (owner_ == nullptr) return;
  owner_->parameter_names_.erase(name_);
  EraseFrom(owner_->buffers_, this);
}

std::string ModuleBuffer::path() const {
  const std::string owner = owner_->path();
  return owner.empty() ? name_ : absl::StrCat(owner, ".", name_);
}

std::string ModuleBuffer::full_path() const {
  const std::string owner = owner_->full_path();
  return owner.empty() ? name_ : absl::StrCat(owner, ".", name_);
}

void Parameter::TieTo(Parameter& to, bool transposed) {
  const auto both = [&] { return absl::StrCat("parameter '", path(), "' tied to '", to.path(), "': "); };
  WEFT_REQUIRE(&to != this && to.tied_to_ == nullptr && tied_to_ == nullptr, both(),
               "expected another parameter, neither of them tied");
  WEFT_REQUIRE(&root() == &to.root(), both(), "expected parameters of one model");
  Shape shape;
  for (int i = 0; i < to.spec_.shape.ndim(); ++i) {
    shape.push_back(to.spec_.shape[transposed ? to.spec_.shape.ndim() - 1 - i : i]);
  }
  WEFT_REQUIRE(shape == spec_.shape, both(), "shapes ", spec_.shape.ToString(), " and ",
               to.spec_.shape.ToString(), transposed ? " transposed" : "", " differ");
  if (materialized() || to.materialized()) {
    Throw(absl::StatusCode::kFailedPrecondition, both(), "the model has values already");
  }
  tied_to_ = &to;
  is_transposed_ = transposed;
  // Other names of this one are names of `to` now.
  for (const Module* module : root().AllModules()) {
    for (Parameter* slot : module->tied_) {
      if (slot->tied_to_ != this) continue;
      slot->tied_to_ = &to;
      slot->is_transposed_ = slot->is_transposed_ != transposed;
    }
  }
  std::erase(owner_->parameters_, this);
  owner_->tied_.push_back(this);
}

Module& Parameter::root() const { return owner_->root(); }

std::string Parameter::owner_path() const { return owner_->path(); }

std::string Parameter::owner_full_path() const { return owner_->full_path(); }

std::string Parameter::full_path() const {
  const std::string owner = owner_full_path();
  return owner.empty() ? name_ : absl::StrCat(owner, ".", name_);
}

std::string Parameter::path() const {
  const std::string owner = owner_path();
  return owner.empty() ? name_ : absl::StrCat(owner, ".", name_);
}

}  // namespace weft
