#include "mesh/redistribution/shard_nests.h"

namespace weft {

Nests NestsOf(const Layout& layout, const DeviceMesh& mesh) {
  Nests nests;
  for (Nest& nest : nests) nest.axes.fill(-1);
  for (int axis = 0; axis < layout.num_axes(); ++axis) {
    if (layout.IsShard(axis) && mesh.axis_size(axis) > 1) {
      nests[layout.shard_dim(axis)].axes[layout.shard_position(axis)] = static_cast<int8_t>(axis);
    }
  }
  for (int dim = 0; dim < layout.ndim(); ++dim) {
    Nest& nest = nests[dim];
    for (int8_t axis : nest.axes) {
      if (axis >= 0) nest.axes[nest.size++] = axis;
    }
  }
  return nests;
}

void KeepDistinct(IndexList& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

IndexList ChunkExtents(const IndexList& extents, int64_t cuts) {
  IndexList chunks;
  for (int64_t extent : extents) {
    if (extent == 0) continue;
    const int64_t chunk = (extent + cuts - 1) / cuts;
    chunks.push_back(chunk);
    if (extent % chunk != 0) chunks.push_back(extent % chunk);
  }
  KeepDistinct(chunks);
  return chunks;
}

IndexList TellingIndices(const Nests& from, const Nests& to, const Shape& shape, int axis,
                         const DeviceMesh& mesh) {
  IndexList indices = {0};
  const int64_t size = mesh.axis_size(axis);
  for (const Nests* nests : {&from, &to}) {
    for (int dim = 0; dim < shape.ndim(); ++dim) {
      const Nest& nest = (*nests)[dim];
      if ((NestMask(nest) >> axis & 1) == 0) continue;
      IndexList extents = {shape[dim]};  // that the piece may have, level by level
      for (int i = 0; nest.axes[i] != axis; ++i)
        extents = ChunkExtents(extents, mesh.axis_size(nest.axes[i]));
      for (int64_t extent : extents) {
        if (extent == 0) continue;
        const int64_t chunk = (extent + size - 1) / size;
        indices.push_back(std::min(extent / chunk, size - 1));
        indices.push_back(std::min(extent / chunk + 1, size - 1));
      }
    }
  }
  KeepDistinct(indices);
  return indices;
}

}  // namespace weft
