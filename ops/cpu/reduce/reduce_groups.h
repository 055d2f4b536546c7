// Any set of dims is reduced in steps of the one kind that is fast, [outer, reduced, inner].

#ifndef WEFT_OPS_CPU_REDUCE_REDUCE_GROUPS_H_
#define WEFT_OPS_CPU_REDUCE_REDUCE_GROUPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "ops/reduce/reduce.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A row-major array as [outer, reduced, inner].
struct MiddleDim {
  int64_t outer = 1;
  int64_t reduced = 1;
  int64_t inner = 1;
};

// Neighbouring dims that are all kept or all reduced.
struct ReduceGroup {
  int64_t extent;
  bool reduced;
};

using ReduceGroups = absl::InlinedVector<ReduceGroup, Shape::kMaxDims>;

inline ReduceGroups GroupDims(const Shape& shape, DimMask dims) {
  ReduceGroups groups;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    const bool reduced = (dims >> dim & 1) != 0;
    if (!groups.empty() && groups.back().reduced == reduced) {
      groups.back().extent *= shape[dim];
    } else {
      groups.push_back({shape[dim], reduced});
    }
  }
  return groups;
}

// Takes the innermost reduced group out, and merges the kept ones beside it. The innermost goes first, where the elements lie
// together.
inline MiddleDim TakeInnermost(ReduceGroups& groups) {
  MiddleDim m;
  const auto last =
      std::find_if(groups.rbegin(), groups.rend(), [](const ReduceGroup& g) { return g.reduced; });
  const size_t taken = last == groups.rend() ? groups.size() : static_cast<size_t>(groups.rend() - last - 1);
  ReduceGroup kept = {1, false};
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i < taken) {
      m.outer *= groups[i].extent;
    } else if (i == taken) {
      m.reduced = groups[i].extent;
    } else {
      m.inner *= groups[i].extent;
      kept.extent *= groups[i].extent;
    }
  }
  if (taken == groups.size()) {
    groups.clear();
    return m;
  }
  groups.resize(taken);
  if (!groups.empty()) {
    groups.back().extent *= kept.extent;  // groups alternate: the one before a reduced group is kept
  } else {
    groups.push_back(kept);
  }
  return m;
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_REDUCE_REDUCE_GROUPS_H_
