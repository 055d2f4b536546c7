#include "runtime/tensor/loop_nest.h"

#include <algorithm>
#include <utility>

namespace weft {

LoopNest MakeLoopNest(const Shape& shape, const Shape& from_strides, const Shape& to_strides) {
  std::array<int, Shape::kMaxDims> dims = {};
  int count = 0;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (shape[dim] != 1) dims[count++] = dim;
  }
  // Stable insertion sort of at most 8 dims; ties (repeated elements of `to`) by the other strides.
  const auto is_outer = [&](int a, int b) {
    if (to_strides[a] != to_strides[b]) return to_strides[a] > to_strides[b];
    return from_strides[a] > from_strides[b];
  };
  for (int i = 1; i < count; ++i) {
    for (int j = i; j > 0 && is_outer(dims[j], dims[j - 1]); --j) std::swap(dims[j], dims[j - 1]);
  }
  LoopNest nest;
  for (int i = 0; i < count; ++i) {
    const int dim = dims[i];
    const int last = nest.inner();
    if (last >= 0 && nest.from_strides[last] == from_strides[dim] * shape[dim] &&
        nest.to_strides[last] == to_strides[dim] * shape[dim]) {
      nest.extents[last] *= shape[dim];
      nest.from_strides[last] = from_strides[dim];
      nest.to_strides[last] = to_strides[dim];
    } else {
      nest.extents.push_back(shape[dim]);
      nest.from_strides.push_back(from_strides[dim]);
      nest.to_strides.push_back(to_strides[dim]);
    }
  }
  if (nest.extents.ndim() == 0) return {{1}, {1}, {1}};
  return nest;
}

}  // namespace weft
