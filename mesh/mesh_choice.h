#ifndef WEFT_MESH_MESH_CHOICE_H_
#define WEFT_MESH_MESH_CHOICE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "mesh/device_mesh.h"

namespace weft {

// The mesh of a job whose number of ranks changes from one start to the next.

// The mesh that a world of `world_size` ranks runs. Ranks that it has no place for are spares: the last ones.
//
// `text`: a mesh, as DeviceMesh::Parse reads it, in which the size of one axis may be "auto": the largest with which the
//         mesh fits the world.
//
//   "dp=auto, tp=2"     7 ranks     dp=3, tp=2, and rank 6 is a spare
//
// Errors: InvalidArgument, if the world has fewer ranks than the other axes need, for "auto" twice, or as
//         DeviceMesh::Parse. A mesh without "auto" is returned whatever the world.
DeviceMesh ChooseMesh(absl::string_view text, int64_t world_size);

// Of several meshes, separated by ';', that of most ranks among those that fit the world; of equals the first.
//
//   "dp=4, tp=2; dp=2, tp=2; dp=2"     5 ranks     dp=2, tp=2, and rank 4 is a spare
//
// Errors: InvalidArgument, if none fits; for an empty list; as DeviceMesh::Parse.
DeviceMesh ChooseMeshAmong(absl::string_view choices, int64_t world_size);

// Whether the text of a mesh leaves a size to the world.
bool IsAutoMesh(absl::string_view text);

}  // namespace weft

#endif  // WEFT_MESH_MESH_CHOICE_H_
