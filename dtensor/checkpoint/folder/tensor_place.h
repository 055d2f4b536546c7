// How a whole tensor lies over the ranks that save it, and which rank saves what of it.

#ifndef WEFT_DTENSOR_CHECKPOINT_FOLDER_TENSOR_PLACE_H_
#define WEFT_DTENSOR_CHECKPOINT_FOLDER_TENSOR_PLACE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/shard_math.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// A value; `==` compares all of it.
struct TensorPlace {
  TensorType type;
  DeviceMesh mesh;  // may be a slice: of a pipeline's stage
  Layout layout;    // without Partial

  bool operator==(const TensorPlace&) const = default;
};

// A box and the world rank that saves it.
struct OwnedBox {
  int rank = 0;
  ShardBox box;

  bool operator==(const OwnedBox&) const = default;
};

// The boxes that are saved, each with the rank that saves it. Of the ranks that hold a box it is the first: the one at index
// 0 along every axis that does not split the tensor. Empty boxes are left out. Together the boxes have each element once.
//
//   f32[5]  on dp=2, tp=2   [tp]   rank 0: 0+3   rank 1: 3+2
//                           [dp]   rank 0: 0+3   rank 2: 3+2
//                           [-]    rank 0: 0+5
//   f32[1]                  [dp]   rank 0: 0+1
//
// `most`: stops behind so many. What a file says may have more boxes than there is memory for.
// Cost:   the number of boxes.
std::vector<OwnedBox> OwnedBoxes(const TensorPlace& place,
                                 int64_t most = std::numeric_limits<int64_t>::max());
// The ranks that hold the same box as `rank`, in the mesh's order: those that are where it is along every axis that splits the
// tensor. `rank` is one of the mesh's.
// Cost:   their number.
std::vector<int> HoldersOf(const TensorPlace& place, int rank);
// What `rank` saves; nothing, if it saves none of it.
std::optional<ShardBox> BoxOwnedBy(const TensorPlace& place, int rank);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_TENSOR_PLACE_H_
