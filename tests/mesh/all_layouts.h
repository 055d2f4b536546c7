#ifndef WEFT_TESTS_MESH_ALL_LAYOUTS_H_
#define WEFT_TESTS_MESH_ALL_LAYOUTS_H_

#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"

namespace weft {

// Every layout of a tensor of `ndim` dims over `num_axes` axes whose Partial axes have kinds in `ops`: every
// assignment of placements, every nesting order.
std::vector<Layout> AllLayouts(int ndim, int num_axes, const std::vector<ReduceOp>& ops);

// Every mesh of one to `max_axes` axes a, b, c, ... of at least two ranks each and at most `max_ranks` in
// all.
std::vector<DeviceMesh> AllMeshes(int max_axes, int64_t max_ranks);

}  // namespace weft

#endif  // WEFT_TESTS_MESH_ALL_LAYOUTS_H_
