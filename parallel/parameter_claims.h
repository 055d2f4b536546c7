// Which parameters each of several nested entries takes: the innermost entry wins.

#ifndef WEFT_PARALLEL_PARAMETER_CLAIMS_H_
#define WEFT_PARALLEL_PARAMETER_CLAIMS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "parallel/model_tree.h"

namespace weft {

// What the entries of one style and axis mark: modules, which take every parameter below them that no inner mark
// takes, and parameters, which are taken by themselves.
class ParameterClaims {
 public:
  // A parameter, and the module that it is gathered with.
  struct Claim {
    int parameter = 0;
    int unit = 0;

    bool operator==(const Claim&) const = default;
  };

  explicit ParameterClaims(const ModelTree& tree) : tree_(tree) {}

  // Marks modules or parameters. A module of `wrap_from` elements or more below a marked module, with no child of
  // as many, is a unit of its own; 0: none is.
  void Mark(const ModelTree::Matches& matches, int64_t wrap_from);

  // Divides the model's parameters but those that `leaves_out` says, when all is marked.
  void Divide(const std::function<bool(int parameter)>& leaves_out);

  // What these marks took, by parameter, ascending, each once.
  std::vector<Claim> Of(const ModelTree::Matches& matches) const;

 private:
  // A marked module: the parameters below it that no inner module's mark has, those that are marked themselves, too.
  struct Area {
    int64_t wrap_from = 0;
    std::vector<int> parameters = {};
  };

  int MarkedAbove(int module) const;  // itself or the nearest above; -1 if there is none
  void WrapBySize(int marked, const Area& area);

  const ModelTree& tree_;
  absl::flat_hash_map<int, Area> areas_;   // by module
  absl::flat_hash_set<int> marked_alone_;  // parameters
  std::vector<int> units_;                 // of each parameter; -1 if nothing takes it
};

}  // namespace weft

#endif  // WEFT_PARALLEL_PARAMETER_CLAIMS_H_
