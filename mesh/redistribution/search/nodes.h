#ifndef WEFT_MESH_REDISTRIBUTION_SEARCH_NODES_H_
#define WEFT_MESH_REDISTRIBUTION_SEARCH_NODES_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "mesh/layout.h"
#include "mesh/redistribution/move.h"
#include "mesh/redistribution/redistribution.h"

namespace weft {

// A layout that a search for a redistribution has reached, with the step that led to it.
struct RedistributionNode {
  Layout layout = {};
  Layout result = {};  // of the step; `layout` is that with what then needs only a slice
  int parent = -1;     // the index of the node before
  StepKind kind = StepKind::kSlice;
  AxisMask axes = 0;
  ReduceOp op = ReduceOp::kSum;
  int64_t bytes = 0;  // so far
  double us = 0;
  int64_t held = 0;    // bytes of the piece that this one lies in, if it is not the caller's
  Layout buffer = {};  // of that piece
};

// All nodes of one search, by index and by layout: one layout may be reached in several ways.
class RedistributionNodes {
 public:
  int size() const { return static_cast<int>(nodes_.size()); }
  // The reference holds until the next Add.
  const RedistributionNode& operator[](int index) const { return nodes_[index]; }

  void Add(const RedistributionNode& node) {
    const auto [latest, is_first] = latest_.try_emplace(node.layout, size());
    earlier_.push_back(is_first ? -1 : latest->second);
    latest->second = size();
    nodes_.push_back(node);
  }

  // Whether any node of `layout` meets the condition.
  template <class Condition>
  bool Any(const Layout& layout, const Condition& condition) const {
    const auto latest = latest_.find(layout);
    int index = latest == latest_.end() ? -1 : latest->second;
    while (index >= 0 && !condition(nodes_[index])) index = earlier_[index];
    return index >= 0;
  }

 private:
  std::vector<RedistributionNode> nodes_;
  std::vector<int> earlier_;                 // the node of the same layout before this one, or -1
  absl::flat_hash_map<Layout, int> latest_;  // the last node of a layout
};

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_SEARCH_NODES_H_
