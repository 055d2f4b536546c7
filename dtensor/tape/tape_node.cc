#include "dtensor/tape/tape_node.h"

#include <utility>

namespace weft {

TapeNode::~TapeNode() {
  // One after another: the end of a long history must not be as many nested destructors. All edges are taken,
  // since what a node saved may hold its sources until it is gone.
  Edges ending = std::move(edges_);
  while (!ending.empty()) {
    const IntrusivePtr<TapeNode> node = std::move(ending.back().node);
    ending.pop_back();
    if (!node || node->use_count() > 1) continue;
    for (Edge& edge : node->edges_) ending.push_back(std::move(edge));
    node->edges_.clear();
  }
}

}  // namespace weft
