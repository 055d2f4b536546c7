#include "dtensor/optim/parameter_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/path_tree.h"
#include "runtime/base/error.h"
#include "runtime/base/nearest.h"

namespace weft {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// `whose`: "the options have".
void CheckField(absl::string_view optimizer, absl::string_view whose, absl::string_view field,
                std::optional<double> value, double limit) {
  if (!value) return;
  const bool fits = std::isfinite(*value) && *value >= 0 && *value < limit;
  WEFT_REQUIRE(fits, optimizer, ": ", whose, " ", field, " ", *value, ": expected at least 0",
               limit < 2 ? absl::StrCat(" and below ", limit) : "");
}

void CheckFields(const ParameterGroup& group, absl::string_view optimizer) {
  const std::string whose = absl::StrCat("parameter group '", group.path, "' has");
  CheckField(optimizer, whose, "lr_scale", group.lr_scale, kNoLimit);
  CheckField(optimizer, whose, "weight_decay", group.weight_decay, kNoLimit);
  CheckField(optimizer, whose, "beta1", group.beta1, 1);
  CheckField(optimizer, whose, "beta2", group.beta2, 1);
  if (!group.matrix) return;
  const std::string& matrix = *group.matrix;
  const bool is_matrix = matrix.find_first_not_of("iob") == std::string::npos &&
                         absl::StrContains(matrix, "i") && absl::StrContains(matrix, "o");
  WEFT_REQUIRE(is_matrix, optimizer, ": parameter group '", group.path, "' has matrix '", matrix,
               "': expected a letter per dim of i (input), o (output) and b (batch), with an i and an o");
}

// All parameters of the models that `parameters` are of: frozen ones, and those of other optimizers and of other stages, too.
std::vector<Parameter*> WholeModels(const std::vector<Parameter*>& parameters) {
  std::vector<Module*> roots;
  for (const Parameter* parameter : parameters) {
    Module* const root = &parameter->root();
    if (std::find(roots.begin(), roots.end(), root) == roots.end()) roots.push_back(root);
  }
  std::vector<Parameter*> all;
  for (Module* root : roots) {
    const std::vector<Parameter*> of_root = root->RegisteredParameters();
    all.insert(all.end(), of_root.begin(), of_root.end());
  }
  return all;
}

// The paths of parameters, and of the modules of their models: all beginnings of paths there.
class Paths {
 public:
  Paths(const std::vector<Parameter*>& parameters, const std::vector<Parameter*>& models)
      : parameters_(PathsOf(parameters)),
        modules_(ModulesAbove(PathsOf(models))),
        parameter_tree_(parameters_),
        module_tree_(modules_) {}

  const std::string& parameter(size_t index) const { return parameters_[index]; }

  std::vector<int> Match(absl::string_view pattern) const {
    const std::vector<int> modules = module_tree_.Match(pattern);
    if (modules.empty()) return parameter_tree_.Match(pattern);
    std::vector<int> below;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      for (const int module : modules) {
        if (!IsBelow(parameters_[i], modules_[module])) continue;
        below.push_back(static_cast<int>(i));
        break;
      }
    }
    return below;
  }

  std::string Nearest(absl::string_view text) const {
    std::vector<std::string> all = modules_;
    all.insert(all.end(), parameters_.begin(), parameters_.end());
    return NearestName(text, all);
  }

 private:
  static std::vector<std::string> PathsOf(const std::vector<Parameter*>& parameters) {
    std::vector<std::string> paths;
    paths.reserve(parameters.size());
    for (const Parameter* parameter : parameters) paths.push_back(parameter->path());
    return paths;
  }
  static std::vector<std::string> ModulesAbove(const std::vector<std::string>& parameters) {
    std::set<std::string> modules;
    if (!parameters.empty()) modules.insert("");
    for (const std::string& path : parameters) {
      for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
        modules.insert(path.substr(0, dot));
      }
    }
    return {modules.begin(), modules.end()};
  }
  static bool IsBelow(absl::string_view parameter, absl::string_view module) {
    return module.empty() || (parameter.size() > module.size() && parameter[module.size()] == '.' &&
                              absl::StartsWith(parameter, module));
  }

  std::vector<std::string> parameters_;
  std::vector<std::string> modules_;
  PathTree parameter_tree_;
  PathTree module_tree_;
};

// Of a group that means none of an optimizer's parameters. It may mean others of the model: frozen ones, those of another
// optimizer or of other stages.
void CheckMeansOthers(const std::vector<Parameter*>& models, const ParameterGroup& group,
                      absl::string_view optimizer) {
  const Paths paths(models, models);
  WEFT_REQUIRE(!paths.Match(group.path).empty(), optimizer, ": parameter group '", group.path,
               "' means no parameter; did you mean '", paths.Nearest(group.path), "'?");
}

template <class T>
void Override(const std::optional<T>& from, std::optional<T>* to) {
  if (from) *to = from;
}

}  // namespace

std::vector<ParameterGroup> ResolveGroups(const std::vector<Parameter*>& parameters,
                                          absl::Span<const ParameterGroup> groups,
                                          absl::string_view optimizer) {
  const std::vector<Parameter*> models = WholeModels(parameters);
  const Paths paths(parameters, models);
  std::vector<ParameterGroup> resolved(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) resolved[i].path = paths.parameter(i);
  if (parameters.empty()) return resolved;
  for (const ParameterGroup& group : groups) {
    CheckFields(group, optimizer);
    const std::vector<int> indices = paths.Match(group.path);
    if (indices.empty()) CheckMeansOthers(models, group, optimizer);
    for (const int i : indices) {
      Override(group.lr_scale, &resolved[i].lr_scale);
      Override(group.weight_decay, &resolved[i].weight_decay);
      Override(group.beta1, &resolved[i].beta1);
      Override(group.beta2, &resolved[i].beta2);
      Override(group.matrix, &resolved[i].matrix);
    }
  }
  return resolved;
}

void RequireBetas(double beta1, double beta2, absl::string_view optimizer) {
  CheckField(optimizer, "the options have", "beta1", beta1, 1);
  CheckField(optimizer, "the options have", "beta2", beta2, 1);
}

void RequireEps(double eps, absl::string_view optimizer) {
  CheckField(optimizer, "the options have", "eps", eps, kNoLimit);
}

void RequireDecay(double weight_decay, absl::string_view optimizer) {
  CheckField(optimizer, "the options have", "weight_decay", weight_decay, kNoLimit);
}

void RequireNoBetas(absl::Span<const ParameterGroup> groups, absl::string_view optimizer) {
  for (const ParameterGroup& group : groups) {
    WEFT_REQUIRE(!group.beta1 && !group.beta2, optimizer, ": parameter group '", group.path,
                 "' sets a beta, which is AdamW's: expected lr_scale or weight_decay");
  }
}

void RequireNoMatrices(absl::Span<const ParameterGroup> groups, absl::string_view optimizer) {
  for (const ParameterGroup& group : groups) {
    WEFT_REQUIRE(!group.matrix, optimizer, ": parameter group '", group.path,
                 "' sets a matrix, which is Muon's: expected lr_scale or weight_decay");
  }
}

}  // namespace weft
