#include "parallel/model_tree.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/nn/module_type.h"
#include "runtime/base/nearest.h"

namespace weft {
namespace {

// How far a text is from a path, or from as many of its components in a row as the text has. Doubled, so that of equals a
// whole path comes first.
int64_t Distance(absl::string_view text, absl::string_view path) {
  const std::vector<std::string> words = absl::StrSplit(path, '.');
  const int64_t count = std::count(text.begin(), text.end(), '.') + 1;
  int64_t least = 2 * EditDistance(text, path);
  for (auto first = words.begin(); words.end() - first >= count; ++first) {
    least = std::min(least, 2 * EditDistance(text, absl::StrJoin(first, first + count, ".")) + 1);
  }
  return least;
}

}  // namespace

ModelTree::ModelTree(Module& model) : module_tree_({}), parameter_tree_({}) {
  Append(&model, /*parent=*/-1);
  module_tree_ = PathTree(module_paths_);
  parameter_tree_ = PathTree(parameter_paths_);
}

void ModelTree::Append(Module* module, int parent) {
  const int number = static_cast<int>(modules_.size());
  modules_.push_back(module);
  module_paths_.push_back(module->path());
  module_types_.push_back(ModuleTypeName(*module));
  parents_.push_back(parent);
  ends_.push_back(0);
  firsts_.push_back(static_cast<int>(parameters_.size()));
  for (Parameter* parameter : module->parameters()) {
    parameters_.push_back(parameter);
    parameter_paths_.push_back(parameter->path());
    owners_.push_back(number);
  }
  for (Module* child : module->children()) Append(child, number);
  ends_[number] = static_cast<int>(modules_.size());
}

std::string ModelTree::DeclaredDims(const std::vector<int>& parameters) const {
  std::vector<std::string> texts;
  for (const int parameter : parameters) {
    const ShardDims& dims = parameters_[parameter]->spec().shard_dims;
    if (dims.column >= 0) texts.push_back(absl::StrCat("column (dim ", dims.column, ")"));
    if (dims.row >= 0) texts.push_back(absl::StrCat("row (dim ", dims.row, ")"));
    if (dims.vocabulary >= 0) texts.push_back(absl::StrCat("vocabulary (dim ", dims.vocabulary, ")"));
  }
  return texts.empty() ? "none" : absl::StrJoin(texts, ", ");
}

ModelTree::Matches ModelTree::Match(absl::string_view pattern) const {
  Matches matches = {.modules = module_tree_.Match(pattern), .parameters = {}};
  if (matches.modules.empty()) matches.parameters = parameter_tree_.Match(pattern);
  return matches;
}

std::vector<int> ModelTree::OwnParameters(int module) const {
  std::vector<int> own(modules_[module]->parameters().size());
  std::iota(own.begin(), own.end(), firsts_[module]);
  return own;
}

std::vector<int> ModelTree::ModulesBelow(const Matches& matches) const {
  std::vector<int> below;
  int next = 0;  // the first that is not in yet
  for (int module : matches.modules) {
    for (next = std::max(next, module); next < ends_[module]; ++next) below.push_back(next);
  }
  return below;
}

std::vector<int> ModelTree::ParametersBelow(const Matches& matches) const {
  std::vector<int> below = matches.parameters;
  for (int module : ModulesBelow(matches)) {
    const std::vector<int> own = OwnParameters(module);
    below.insert(below.end(), own.begin(), own.end());
  }
  return below;
}

std::string ModelTree::NearestPath(absl::string_view text) const {
  std::string nearest;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const std::vector<std::string>* paths : {&module_paths_, &parameter_paths_}) {
    for (const std::string& path : *paths) {
      if (path.empty()) continue;  // "" is near every short text, and never meant
      const int64_t distance = Distance(text, path);
      if (distance >= least) continue;
      least = distance;
      nearest = path;
    }
  }
  return nearest;
}

}  // namespace weft
