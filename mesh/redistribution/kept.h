#ifndef WEFT_MESH_REDISTRIBUTION_KEPT_H_
#define WEFT_MESH_REDISTRIBUTION_KEPT_H_

#include <cstdint>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/tensor/shape.h"

namespace weft {

// Elements that all ranks together hold under both layouts: exact, uneven pieces included.
//
// Cost: a microsecond or so, whatever the number of ranks, where no dim is cut anew over an axis that counts
//       elsewhere too; else in proportion to the ranks along the axes that do, for axes of two sizes to the
//       smaller.
int64_t NumKept(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_KEPT_H_
