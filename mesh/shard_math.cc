#include "mesh/shard_math.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/reduce_op.h"

namespace weft {
Range ChunkOf(Range range, int64_t num_chunks, int64_t index) {
  const int64_t chunk = range.size / num_chunks + (range.size % num_chunks != 0);
  const int64_t begin = std::min(index * chunk, range.size);
  const int64_t end = std::min(begin + chunk, range.size);
  return {range.offset + begin, end - begin};
}

void CheckOnMesh(const Layout& layout, const DeviceMesh& mesh) {
  WEFT_REQUIRE(layout.num_axes() == mesh.num_axes(), "layout ", layout.ToString(), " is for ",
               layout.num_axes(), " mesh axes, but mesh (", mesh.ToString(), ") has ", mesh.num_axes());
  if (!mesh.IsSlice()) return;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    WEFT_REQUIRE(!mesh.IsFixed(axis) || layout.IsReplicate(axis), "layout ", layout.ToString(mesh),
                 " names axis '", mesh.axis_name(axis), "', which is fixed at ", mesh.fixed_index(axis),
                 " in mesh (", mesh.ToString(), "), a slice of (", mesh.Root().ToString(), ")");
  }
}

void CheckOnMesh(const Layout& layout, const Shape& global_shape, const DeviceMesh& mesh) {
  WEFT_REQUIRE(layout.ndim() == global_shape.ndim(), "layout ", layout.ToString(mesh), " has ", layout.ndim(),
               " dims, but the tensor's shape is ", global_shape.ToString());
  CheckOnMesh(layout, mesh);
}

void CheckPartials(const Layout& layout, DType dtype, const DeviceMesh& mesh) {
  if (IsFloating(dtype)) return;
  const AxisList axes = layout.PartialAxes();
  const bool has_average = std::any_of(axes.begin(), axes.end(),
                                       [&](int axis) { return layout.partial_op(axis) == ReduceOp::kAvg; });
  WEFT_REQUIRE(!has_average || axes.size() == 1, "layout ", layout.ToString(mesh), " of ", DTypeName(dtype),
               ": averages of ", DTypeName(dtype),
               " depend on the order of the axes, expected avg over one axis and no other Partial");
}

ShardBox WholeBox(const Shape& shape) {
  ShardBox box = {shape, shape, shape};
  for (int dim = 0; dim < shape.ndim(); ++dim) box.offset[dim] = 0;
  return box;
}

ShardBox LocalBox(const Shape& global_shape, const Layout& layout, const DeviceMesh& mesh,
                  absl::Span<const int64_t> coordinate) {
  CheckOnMesh(layout, global_shape, mesh);
  WEFT_REQUIRE(static_cast<int>(coordinate.size()) == mesh.num_axes(), "a coordinate in mesh (",
               mesh.ToString(), ") needs ", mesh.num_axes(), " indices, got ", coordinate.size());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    WEFT_REQUIRE(coordinate[axis] >= 0 && coordinate[axis] < mesh.axis_size(axis), "index ", coordinate[axis],
                 " is outside mesh axis '", mesh.axis_name(axis), "' of size ", mesh.axis_size(axis));
  }
  ShardBox box = {global_shape, global_shape, global_shape};
  for (int dim = 0; dim < global_shape.ndim(); ++dim) {
    Range piece = {0, global_shape[dim]};
    for (int axis : layout.ShardAxes(dim)) piece = ChunkOf(piece, mesh.axis_size(axis), coordinate[axis]);
    box.offset[dim] = piece.offset;
    box.shape[dim] = piece.size;
  }
  return box;
}

Shape LargestPiece(const Shape& global_shape, const Layout& layout, const DeviceMesh& mesh) {
  CheckOnMesh(layout, global_shape, mesh);
  // The first chunk is never shorter than a later one, and a longer piece has no shorter first chunk. First
  // chunks of first chunks are those of all the axes together, rounded up once.
  Shape cuts = global_shape;
  for (int dim = 0; dim < global_shape.ndim(); ++dim) cuts[dim] = 1;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (layout.IsShard(axis)) cuts[layout.shard_dim(axis)] *= mesh.axis_size(axis);
  }
  Shape piece = global_shape;
  for (int dim = 0; dim < global_shape.ndim(); ++dim)
    piece[dim] = ChunkOf({0, piece[dim]}, cuts[dim], 0).size;
  return piece;
}

int64_t MaxLocalElements(const Shape& global_shape, const Layout& layout, const DeviceMesh& mesh) {
  return LargestPiece(global_shape, layout, mesh).num_elements();
}

std::ostream& operator<<(std::ostream& out, const Range& range) {
  return out << range.offset << "+" << range.size;
}

std::ostream& operator<<(std::ostream& out, const ShardBox& box) {
  return out << box.shape << " at " << box.offset << " of " << box.global_shape;
}

}  // namespace weft
