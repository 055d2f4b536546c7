// Which parameters each of several nested entries takes: the innermost entry wins.

#ifndef WEFT_PARALLEL_PARAMETER_CLAIMS_H_
#define WEFT_PARALLEL_PARAMETER_CLAIMS_H_

#include <cstdint>
#include <functional>
#include <string>
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

  // Which modules below a marked one are units of their own: those of `wrap_from` elements or more with no child of
  // as many, and those of type `wrap`. 0 and the empty type: none.
  struct Wrapping {
    int64_t wrap_from = 0;
    std::string wrap = {};
  };

  // Marks modules or parameters.
  void Mark(const ModelTree::Matches& matches, const Wrapping& wrapping);

  // Divides the model's parameters but those that `leaves_out` says, when all is marked.
  void Divide(const std::function<bool(int parameter)>& leaves_out);

  // What these marks took, by parameter, ascending, each once.
  std::vector<Claim> Of(const ModelTree::Matches& matches) const;

 private:
  // A marked module: the parameters below it that no inner module's mark has, those that are marked themselves, too.
  struct Area {
    Wrapping wrapping = {};
    std::vector<int> parameters = {};
  };

  int MarkedAbove(int module) const;  // itself or the nearest above; -1 if there is none
  void WrapBySize(int marked, const Area& area);
  void WrapByType(int marked, const Area& area);
  void GiveToUnits(int marked, const Area& area, const std::function<bool(int module)>& is_unit);

  const ModelTree& tree_;
  absl::flat_hash_map<int, Area> areas_;   // by module
  absl::flat_hash_set<int> marked_alone_;  // parameters
  std::vector<int> units_;                 // of each parameter; -1 if nothing takes it
};

}  // namespace weft

#endif  // WEFT_PARALLEL_PARAMETER_CLAIMS_H_
