#ifndef WEFT_MESH_REDISTRIBUTION_MOVE_H_
#define WEFT_MESH_REDISTRIBUTION_MOVE_H_

#include <cstdint>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "mesh/redistribution/redistribution.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A set of mesh axes, one bit each.
using AxisMask = uint32_t;
AxisList AxesIn(AxisMask mask);  // ascending
AxisMask MaskOf(const AxisList& axes);
int64_t NumRanksAlong(AxisMask mask, const DeviceMesh& mesh);

// The shortest way from one layout to another of the same Partial axes: every rank gets exactly what it
// lacks.
struct Move {
  StepKind kind = StepKind::kSlice;  // kSlice if no rank lacks anything
  AxisMask axes = 0;                 // of the groups within which everything moves
  int64_t lacked = 0;                // elements that the worst rank receives
  int64_t messages = 0;              // the most ranks that one rank receives from, counted for even pieces
};

// How `from` becomes `to` in one step, with the worst rank's exact count of elements, uneven pieces included.
//
// Layout: Partial along the same axes with the same kinds; axes of size 1 do not matter.
// Cost:   a fraction of a microsecond where the extents divide evenly; else some coordinates are tried,
//         however many ranks there are. Only if a dim is cut anew and more than 1024 of them would have to
//         be, the new piece stands for the count.
Move DescribeMove(const Layout& from, const Layout& to, const Shape& shape, const DeviceMesh& mesh);

// The axes whose placement differs; order within a dim does not count.
AxisMask ChangedAxes(const Layout& from, const Layout& to, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_MOVE_H_
