// Where the branches of the detector lie, and how each is divided among its ranks.

#ifndef WEFT_EXAMPLES_PERCEPTION_PERCEPTION_PLAN_H_
#define WEFT_EXAMPLES_PERCEPTION_PERCEPTION_PLAN_H_

#include <cstdint>
#include <string>

#include "mesh/device_mesh.h"
#include "parallel/plan.h"

namespace weft {

// The mesh of each part's ranks: axes dp (data parallel), fs (fully sharded) and tp (tensor parallel), each with a size;
// empty: one rank.
struct PerceptionMeshes {
  std::string camera = "dp=2";
  std::string lidar = "fs=2";
  std::string fusion = "tp=2";  // the heads lie there, too
};

struct PerceptionPlan {
  DeviceMesh mesh;  // all ranks, along axis "gpus": the camera's, the lidar's, the fusion's
  Plan plan;
};

// Errors: InvalidArgument for another axis, or a text that is no mesh.
PerceptionPlan MakePerceptionPlan(const PerceptionMeshes& meshes);

}  // namespace weft

#endif  // WEFT_EXAMPLES_PERCEPTION_PERCEPTION_PLAN_H_
