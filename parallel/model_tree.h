// A model's modules and parameters by number, and what the path of a plan's entry means among them.

#ifndef WEFT_PARALLEL_MODEL_TREE_H_
#define WEFT_PARALLEL_MODEL_TREE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/path_tree.h"

namespace weft {

// Numbers are the order of registration: a module comes before all below it, its own parameters before its
// children's. Views the model, which outlives it.
class ModelTree {
 public:
  explicit ModelTree(Module& model);

  const std::vector<Module*>& modules() const { return modules_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  const std::string& module_path(int module) const { return module_paths_[module]; }
  const std::string& parameter_path(int parameter) const { return parameter_paths_[parameter]; }
  // The name of the module's class, without namespaces: "Linear".
  const std::string& module_type(int module) const { return module_types_[module]; }
  // The dims that parameters declare for tensor-parallel styles (ShardDims), for messages: "column (dim 1), row (dim 0)", or "none".
  std::string DeclaredDims(const std::vector<int>& parameters) const;
  int parent(int module) const { return parents_[module]; }      // -1 of the root
  int owner(int parameter) const { return owners_[parameter]; }  // the module that registered it

  // What a path means: modules, or, if it names none, parameters. Ascending.
  struct Matches {
    std::vector<int> modules;
    std::vector<int> parameters;
    bool empty() const { return modules.empty() && parameters.empty(); }
  };
  Matches Match(absl::string_view pattern) const;

  std::vector<int> OwnParameters(int module) const;
  // The modules of `matches` and all below them, ascending, each once.
  std::vector<int> ModulesBelow(const Matches& matches) const;
  // Their parameters, and those that `matches` names itself.
  std::vector<int> ParametersBelow(const Matches& matches) const;

  // The module or parameter whose path, or as many of its components in a row as the text has, is nearest to a text: `mlp` is
  // near `blocks.0.mlp`. The root, "", only where there is no other.
  std::string NearestPath(absl::string_view text) const;

 private:
  void Append(Module* module, int parent);

  std::vector<Module*> modules_;
  std::vector<std::string> module_paths_;
  std::vector<std::string> module_types_;
  std::vector<int> parents_;
  std::vector<int> ends_;    // the number of the module after all below it
  std::vector<int> firsts_;  // of its own parameters
  std::vector<Parameter*> parameters_;
  std::vector<std::string> parameter_paths_;
  std::vector<int> owners_;
  PathTree module_tree_;
  PathTree parameter_tree_;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_MODEL_TREE_H_
