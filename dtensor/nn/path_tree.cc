#include "dtensor/nn/path_tree.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"

namespace weft {
namespace {

void SortDistinct(std::vector<int>* list) {
  std::sort(list->begin(), list->end());
  list->erase(std::unique(list->begin(), list->end()), list->end());
}

}  // namespace

PathTree::PathTree(absl::Span<const std::string> paths) : nodes_(1) {
  for (size_t i = 0; i < paths.size(); ++i) {
    int node = 0;
    for (absl::string_view component : absl::StrSplit(paths[i], '.', absl::SkipEmpty())) {
      const auto [child, is_new] = nodes_[node].children.try_emplace(component, std::ssize(nodes_));
      node = child->second;
      if (is_new) nodes_.emplace_back();
    }
    nodes_[node].paths.push_back(static_cast<int>(i));
  }
}

void PathTree::AppendAllBelow(int node, std::vector<int>* nodes) const {
  nodes->push_back(node);
  for (const auto& [component, child] : nodes_[node].children) AppendAllBelow(child, nodes);
}

// All nodes that the pattern so far reaches, one component after another: each once, however many ways of
// reading "**" lead there.
std::vector<int> PathTree::Match(absl::string_view pattern) const {
  std::vector<int> reached = {0};
  for (absl::string_view component : absl::StrSplit(pattern, '.', absl::SkipEmpty())) {
    std::vector<int> next;
    for (int node : reached) {
      const auto& children = nodes_[node].children;
      if (component == "**") {
        AppendAllBelow(node, &next);
      } else if (component == "*") {
        for (const auto& [name, child] : children) next.push_back(child);
      } else if (const auto child = children.find(component); child != children.end()) {
        next.push_back(child->second);
      }
    }
    SortDistinct(&next);
    reached = std::move(next);
  }
  std::vector<int> matches;
  for (int node : reached) {
    matches.insert(matches.end(), nodes_[node].paths.begin(), nodes_[node].paths.end());
  }
  SortDistinct(&matches);
  return matches;
}

}  // namespace weft
