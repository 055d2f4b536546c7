#include "dtensor/nn/containers.h"

#include <algorithm>

#include "absl/strings/str_join.h"

namespace weft {

Module& ModuleContainer::at(int index) const {
  WEFT_REQUIRE(index >= 0 && index < size(), "container '", path(), "' has ", size(),
               " modules: there is no number ", index);
  return *owned_[index];
}

DTensor Sequential::Forward(const DTensor& x) {
  DTensor y = x;
  for (int i = 0; i < size(); ++i) y = at(i)(y);
  return y;
}

Module* ModuleDict::Find(absl::string_view key) const {
  const auto found = std::find(keys_.begin(), keys_.end(), key);
  return found == keys_.end() ? nullptr : &at(static_cast<int>(found - keys_.begin()));
}

Module& ModuleDict::operator[](absl::string_view key) const {
  Module* const module = Find(key);
  WEFT_REQUIRE(module != nullptr, "container '", path(), "' has no module '", key, "'; expected one of ",
               absl::StrJoin(keys_, ", "));
  return *module;
}

Lambda::Lambda(Module* parent, std::string name, std::function<DTensor(const DTensor& x)> function)
    : Module(parent, std::move(name)), function_(std::move(function)) {
  WEFT_REQUIRE(function_ != nullptr, "lambda '", path(), "': expected a function, got an empty one");
}

}  // namespace weft
