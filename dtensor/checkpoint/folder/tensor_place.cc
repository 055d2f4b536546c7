#include "dtensor/checkpoint/folder/tensor_place.h"

namespace weft {

std::vector<OwnedBox> OwnedBoxes(const TensorPlace& place, int64_t most) {
  const int num_axes = place.mesh.num_axes();
  std::vector<int64_t> coordinate(num_axes, 0);
  const std::vector<int>& ranks = place.mesh.ranks();
  std::vector<OwnedBox> boxes;
  if (place.type.shape.num_elements() == 0) return boxes;
  while (std::ssize(boxes) < most) {
    const ShardBox box = LocalBox(place.type.shape, place.layout, place.mesh, coordinate);
    int64_t position = 0;
    for (int axis = 0; axis < num_axes; ++axis) {
      position = position * place.mesh.axis_size(axis) + coordinate[axis];
    }
    if (box.shape.num_elements() > 0) boxes.push_back({ranks[position], box});
    // The next coordinate, along axes that split.
    int axis = num_axes - 1;
    for (; axis >= 0; --axis) {
      if (!place.layout.IsShard(axis)) continue;
      if (++coordinate[axis] < place.mesh.axis_size(axis)) break;
      coordinate[axis] = 0;
    }
    if (axis < 0) break;
  }
  return boxes;
}

std::vector<int> HoldersOf(const TensorPlace& place, int rank) {
  const int num_axes = place.mesh.num_axes();
  std::vector<int64_t> coordinate = place.mesh.CoordinateOf(rank);
  for (int axis = 0; axis < num_axes; ++axis) {
    if (!place.layout.IsShard(axis)) coordinate[axis] = 0;
  }
  std::vector<int> holders;
  while (true) {
    int64_t position = 0;
    for (int axis = 0; axis < num_axes; ++axis) {
      position = position * place.mesh.axis_size(axis) + coordinate[axis];
    }
    holders.push_back(place.mesh.ranks()[position]);
    // The next coordinate, along axes that do not split.
    int axis = num_axes - 1;
    for (; axis >= 0; --axis) {
      if (place.layout.IsShard(axis)) continue;
      if (++coordinate[axis] < place.mesh.axis_size(axis)) break;
      coordinate[axis] = 0;
    }
    if (axis < 0) return holders;
  }
}

std::optional<ShardBox> BoxOwnedBy(const TensorPlace& place, int rank) {
  if (!place.mesh.Contains(rank)) return std::nullopt;
  const std::vector<int64_t> coordinate = place.mesh.CoordinateOf(rank);
  for (int axis = 0; axis < place.mesh.num_axes(); ++axis) {
    if (!place.layout.IsShard(axis) && coordinate[axis] != 0) return std::nullopt;
  }
  const ShardBox box = LocalBox(place.type.shape, place.layout, place.mesh, coordinate);
  return box.shape.num_elements() > 0 ? std::optional<ShardBox>(box) : std::nullopt;
}

}  // namespace weft
