#ifndef WEFT_MESH_SHARD_MATH_H_
#define WEFT_MESH_SHARD_MATH_H_

#include <cstdint>
#include <ostream>

#include "absl/types/span.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/base/dtype.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A half-open piece of one dim.
struct Range {
  int64_t offset = 0;
  int64_t size = 0;

  bool operator==(const Range&) const = default;
};

// Chunk `index` of `num_chunks` of `range`: ceil(size / num_chunks) elements each, trailing chunks shorter or
// empty (PyTorch's torch.chunk). An empty chunk's offset is the end of the range.
//
//   size  over  ->  chunks             offsets
//   5     4         2 2 1 0            0 2 4 5
//   2     4         1 1 0 0            0 1 2 2
//   1     2         1 0                0 1
//   0     2         0 0                0 0
//
// Needs num_chunks >= 1 and 0 <= index < num_chunks.
Range ChunkOf(Range range, int64_t num_chunks, int64_t index);

// A box in a global tensor: what one rank holds of it. Kernels get one per operand.
struct ShardBox {
  Shape global_shape;
  Shape offset;  // of the piece, per dim
  Shape shape;   // of the piece: the local shape

  bool operator==(const ShardBox&) const = default;
};

// The box of a whole tensor.
ShardBox WholeBox(const Shape& shape);

// Errors: InvalidArgument unless the layout has the mesh's number of axes and names none that a slice fixes; the
//         second: and the shape's ndim.
void CheckOnMesh(const Layout& layout, const DeviceMesh& mesh);
void CheckOnMesh(const Layout& layout, const Shape& global_shape, const DeviceMesh& mesh);

// That the value does not depend on the order in which the Partial axes are reduced. An average of integers is cut to a whole
// number, and of bools it is "all": neither commutes with the sum over another axis, nor the first with another average.
//
//   i32 {{1, 0}, {1, 0}} over P{a:sum,b:avg}   a first: (2 + 0) / 2 = 1     b first: 1 / 2 + 1 / 2 = 0
//   i32 {{1, 1}, {0, 2}} over P{a,b:avg}       at once: 4 / 4 = 1           a first: 1 / 2 = 0 and 3 / 2 = 1, 1 / 2 = 0
//
// Errors: InvalidArgument for an average beside another Partial axis, unless the dtype is floating.
void CheckPartials(const Layout& layout, DType dtype, const DeviceMesh& mesh);

// What the rank at `coordinate` (one index per mesh axis) holds of a tensor. Partial axes hold the whole.
// Chunks nest: of the axes that split a dim, outermost first, each cuts the piece that the one before it left,
// so gathering over the innermost axis of [a.b] gives exactly the pieces of [a].
//
//   extent  axes  (0,0)    (0,1)    (1,0)    (1,1)      offset+size
//   5       2x2   0+2      2+1      3+1      4+1
//   2       2x2   0+1      1+0      1+1      2+0
//   1       2x2   0+1      1+0      1+0      1+0
//   0       2x2   0+0      0+0      0+0      0+0
//
// Errors: InvalidArgument if the layout's ndim or axes are not the shape's and the mesh's.
ShardBox LocalBox(const Shape& global_shape, const Layout& layout, const DeviceMesh& mesh,
                  absl::Span<const int64_t> coordinate);

// The largest piece that any rank holds: that of the ranks at index 0 along every axis. In elements: its
// extents' product.
// Errors: as LocalBox.
Shape LargestPiece(const Shape& global_shape, const Layout& layout, const DeviceMesh& mesh);
int64_t MaxLocalElements(const Shape& global_shape, const Layout& layout, const DeviceMesh& mesh);

std::ostream& operator<<(std::ostream& out, const Range& range);   // "2+3": the offset and the size
std::ostream& operator<<(std::ostream& out, const ShardBox& box);  // "[1, 4] at [1, 0] of [2, 4]"

}  // namespace weft

#endif  // WEFT_MESH_SHARD_MATH_H_
