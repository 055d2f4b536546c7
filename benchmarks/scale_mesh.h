#ifndef WEFT_BENCHMARKS_SCALE_MESH_H_
#define WEFT_BENCHMARKS_SCALE_MESH_H_

#include <vector>

#include "benchmarks/growth.h"

namespace weft {

// What one rank pays for being one of many, before anything is sent: series over the number of ranks of a
// mesh, 8 to 1,048,576, and over the size of one group. No communicator is made and no other rank runs.
std::vector<GrowthSeries> MeshSeries();

}  // namespace weft

#endif  // WEFT_BENCHMARKS_SCALE_MESH_H_
