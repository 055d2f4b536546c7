// Modules on a part of the ranks.

#ifndef WEFT_PARALLEL_STYLES_ON_H_
#define WEFT_PARALLEL_STYLES_ON_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "mesh/device_mesh.h"
#include "parallel/style.h"

namespace weft {

// Places a module, and all below it, on a part of the ranks: those at `count` indices along an axis, from `first` on. Its
// parameters, their gradients and their optimizer state are there alone, and other ranks do not run it. What enters it is
// brought there, a gradient goes back. Inside, the other entries of the plan hold, on the part's mesh.
//
// `mesh`: how the part's ranks are divided along the axis: "dp=2, tp=2" in place of an axis of 4. Not given: an axis of
//         the same name. Other axes of the model's mesh are the part's, too.
//
//   {"camera", On("gpus", 0, 4, "dp=2, tp=2")}, {"lidar", On("gpus", 4, 2)}, {"fusion", On("gpus", 6, 2)}
//
// Parts are disjoint, or equal with the same mesh; together they have every index of the axis and every parameter of the
// model. The model itself lies on the whole mesh, as do modules that no entry places: what leaves them is brought there.
// Source: MPMD programs over meshes, as in Barham et al., "Pathways: asynchronous distributed dataflow for ML", 2022.
Style On(absl::string_view axis, int64_t first, int64_t count, absl::string_view mesh = "");

// What the fields of such a style say.
struct OnRange {
  int64_t first = 0;
  int64_t count = 0;
  std::vector<MeshAxis> axes = {};  // in place of the axis; `count` ranks in all
};
// Errors: InvalidArgument for a mesh that is no text of one, or not of so many ranks; and without `first` or `count`.
OnRange OnRangeOf(const Style& style);

}  // namespace weft

#endif  // WEFT_PARALLEL_STYLES_ON_H_
