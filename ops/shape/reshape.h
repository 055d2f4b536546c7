// The same elements under another shape.

#ifndef WEFT_OPS_SHAPE_RESHAPE_H_
#define WEFT_OPS_SHAPE_RESHAPE_H_

#include "ops/op/op.h"

namespace weft {

struct ReshapeAttributes {
  Shape shape;  // the global one

  bool operator==(const ReshapeAttributes&) const = default;
};

// The elements of x, row-major, under another shape: a view where x's strides allow it, else a copy.
//
// Layout: any split passes whose pieces are boxes of the result under the chunk rule (mesh/view_algebra.h),
//         so that a rank only changes the strides of what it holds; dims that are neither merged nor cut
//         always do. Else x is redistributed first, by what is cheapest: an axis moves to another dim, or is
//         gathered.
//
//         x          shape        axes  passes
//         [6, 4, 5]  [6, 20]      a=2   [a, -, -] to [a, -]; of [-, a, -], [-, a]: 2+2 rows of 5 are 10+10
//         [6, 5, 5]  [6, 25]      a=2   [a, -, -] to [a, -]; not [-, a, -]: 3+2 rows of 5 are not 13+12
//         [6, 4]     [2, 3, 4]    a=2   [a, -] to [a, -, -], [-, a] to [-, -, a]
//         [6, 4]     [2, 3, 4]    a=3   only [-, a]
// Errors: InvalidArgument if the numbers of elements differ.
extern const Op<ReshapeAttributes> kReshape;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_RESHAPE_H_
