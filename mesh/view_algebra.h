#ifndef WEFT_MESH_VIEW_ALGEBRA_H_
#define WEFT_MESH_VIEW_ALGEBRA_H_

#include <optional>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/tensor/shape.h"

namespace weft {

// When a tensor of shape `from` is seen under the shape `to`, the same elements in the same row-major order,
// returns the layout that every rank's piece then has; none if there is no such layout, that is if some piece
// is not its box under the chunk rule whichever dims the axes split. Nothing moves, so nothing may be off by
// an element: the pieces are compared, chunk by chunk.
//
//   from    layout  axes      to         result
//   [6, 4]  [a, -]  a=2       [24]       [a]         rows 3+3 are elements 12+12
//   [5, 4]  [a, -]  a=2       [20]       none        rows 3+2 are elements 12+8, the chunks of 20 are 10+10
//   [6, 4]  [-, a]  a=2       [24]       none        columns are no run of elements
//   [24]    [a]     a=2       [6, 4]     [a, -]
//   [12, 8] [-, a]  a=2       [16, 6]    none        (PyTorch issue 179502: silently passed there)
//   [8]     [a.b]   a=2, b=2  [2, 4]     [a, b]      a takes a whole row each, b cuts it
//   [2, 3]  [a, b]  a=2, b=2  [6]        [a.b]       2+1 and 2+1 on either side
//
// Where several layouts say the same (dims of extent 1, axes of size 1, no elements), an axis stays with its
// dim, or with the outermost part of what that was cut into or merged to. Replicate and Partial axes stay as
// they are.
//
// Shape:  both shapes have the same number of elements.
// Cost:   microseconds; grows with the sizes of the axes, not with the number of ranks.
// Errors: InvalidArgument if the layout is not of `from` or on `mesh`, or the numbers of elements differ.
std::optional<Layout> ViewLayout(const Shape& from, const Layout& layout, const Shape& to,
                                 const DeviceMesh& mesh);

// The shape nearest to `to` as which the tensor can be seen where it lies: the dims of `from` stay apart, or
// whole, in every group of dims that would have to move; the others are as in `to`. Cost and errors as above.
//
//   [5, 4, 2, 3] [a, -, -, -], a=2, to [20, 6]:  [5, 4, 6]
Shape UnmergedShape(const Shape& from, const Layout& layout, const Shape& to, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_VIEW_ALGEBRA_H_
