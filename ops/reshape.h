#ifndef WEFT_OPS_RESHAPE_H_
#define WEFT_OPS_RESHAPE_H_

#include <utility>

#include "ops/op.h"

namespace weft {

struct ReshapeAttributes {
  Shape shape;  // the global one

  bool operator==(const ReshapeAttributes&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const ReshapeAttributes& a) {
    return H::combine(std::move(state), a.shape);
  }
};

// The elements of x, row-major, under another shape: a view where x's strides allow it, else a copy.
//
// Layout: a dim that is neither merged nor cut may be split; pieces of the others are not boxes of the
// result, so those
//         are whole on both sides. Dims of extent 1 come and go freely.
//
//         x          shape        may be split
//         [6, 4, 5]  [6, 20]      the 6
//         [6, 4]     [6, 1, 4]    both
//         [6, 4]     [2, 3, 4]    the 4
//         [0, 4]     [0, 3]       none (nothing tells what became of what)
// Errors: InvalidArgument if the numbers of elements differ.
extern const Op<ReshapeAttributes> kReshape;

}  // namespace weft

#endif  // WEFT_OPS_RESHAPE_H_
