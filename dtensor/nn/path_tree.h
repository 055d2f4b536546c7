#ifndef WEFT_DTENSOR_NN_PATH_TREE_H_
#define WEFT_DTENSOR_NN_PATH_TREE_H_

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// Module paths as a tree of their components, so that a plan of a thousand entries on a model of a thousand
// modules looks at each once, and not at each pair. Copies what it needs.
class PathTree {
 public:
  explicit PathTree(absl::Span<const std::string> paths);

  // The indices of the paths that match, ascending. Of a pattern, "*" is any one component and "**" any number
  // of them, none too; "" is the root.
  // Cost: one look-up for a component, all children for a "*", all below for a "**".
  std::vector<int> Match(absl::string_view pattern) const;

 private:
  struct Node {
    absl::flat_hash_map<std::string, int> children;
    std::vector<int> paths;  // that end here: two modules may have one path
  };

  void AppendAllBelow(int node, std::vector<int>* nodes) const;

  std::vector<Node> nodes_;  // the root first
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_PATH_TREE_H_
