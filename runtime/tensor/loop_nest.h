#ifndef WEFT_RUNTIME_TENSOR_LOOP_NEST_H_
#define WEFT_RUNTIME_TENSOR_LOOP_NEST_H_

#include <array>
#include <cstdint>

#include "runtime/tensor/shape.h"

namespace weft {

// How to visit the elements of two equally shaped strided arrays together, in whatever order is quickest:
// dims of extent 1 dropped, sorted by the strides of `to` (largest outermost), neighbours merged wherever
// both arrays allow it. Always at least one loop; `extents` are all positive unless the arrays are empty.
struct LoopNest {
  Shape extents;
  Shape from_strides;
  Shape to_strides;

  int inner() const { return extents.ndim() - 1; }
  bool operator==(const LoopNest&) const = default;
};

LoopNest MakeLoopNest(const Shape& shape, const Shape& from_strides, const Shape& to_strides);

// Calls `body(from_offset, to_offset)`, in elements, for every index of the outer loops: all but the
// innermost `num_inner`.
template <class Body>
void ForEachOuter(const LoopNest& nest, int num_inner, const Body& body) {
  const int num_outer = nest.extents.ndim() - num_inner;
  if (nest.extents.num_elements() == 0) return;
  std::array<int64_t, Shape::kMaxDims> index = {};
  int64_t from = 0;
  int64_t to = 0;
  while (true) {
    body(from, to);
    int dim = num_outer - 1;
    for (; dim >= 0; --dim) {
      from += nest.from_strides[dim];
      to += nest.to_strides[dim];
      if (++index[dim] < nest.extents[dim]) break;
      from -= nest.from_strides[dim] * nest.extents[dim];
      to -= nest.to_strides[dim] * nest.extents[dim];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_LOOP_NEST_H_
