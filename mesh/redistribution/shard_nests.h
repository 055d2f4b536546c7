#ifndef WEFT_MESH_REDISTRIBUTION_SHARD_NESTS_H_
#define WEFT_MESH_REDISTRIBUTION_SHARD_NESTS_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/shape.h"

namespace weft {

// What counting over all ranks of a mesh works with: layouts taken apart dim by dim, and the few
// indices along an axis that stand for all.

// The axes that split one dim, outermost first, those of one rank left out.
struct Nest {
  std::array<int8_t, DeviceMesh::kMaxAxes> axes;
  int size = 0;
};
using Nests = std::array<Nest, Layout::kMaxDims>;  // by dim

Nests NestsOf(const Layout& layout, const DeviceMesh& mesh);

// The axes from place `first` on, as bits.
inline uint32_t NestMask(const Nest& nest, int first = 0) {
  uint32_t mask = 0;
  for (int i = first; i < nest.size; ++i) mask |= 1u << nest.axes[i];
  return mask;
}

// How many axes, outermost, are the same in both.
inline int NumSettled(const Nest& from, const Nest& to) {
  int settled = 0;
  while (settled < std::min(from.size, to.size) && from.axes[settled] == to.axes[settled]) ++settled;
  return settled;
}

using Coordinate = std::array<int64_t, DeviceMesh::kMaxAxes>;

// The part of `piece` at `coordinate`.
inline Range PieceAt(Range piece, const Nest& nest, const Coordinate& coordinate, const DeviceMesh& mesh) {
  for (int i = 0; i < nest.size; ++i) {
    piece = ChunkOf(piece, mesh.axis_size(nest.axes[i]), coordinate[nest.axes[i]]);
  }
  return piece;
}

inline int64_t Overlap(const Range& a, const Range& b) {
  return std::max<int64_t>(0, std::min(a.offset + a.size, b.offset + b.size) - std::max(a.offset, b.offset));
}

using IndexList = absl::InlinedVector<int64_t, 8>;

// Sorts, and leaves one of each.
void KeepDistinct(IndexList& list);

// The different extents, but for 0, of the chunks of pieces of these extents.
IndexList ChunkExtents(const IndexList& extents, int64_t cuts);

// Indices along `axis` that give pieces of every combination of sizes, 0 first: chunks are full, then one is
// shorter, then all are empty, so that each run of equal ones starts at one of these.
IndexList TellingIndices(const Nests& from, const Nests& to, const Shape& shape, int axis,
                         const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_SHARD_NESTS_H_
