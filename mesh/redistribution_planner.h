#ifndef WEFT_MESH_REDISTRIBUTION_PLANNER_H_
#define WEFT_MESH_REDISTRIBUTION_PLANNER_H_

#include "mesh/redistribution.h"
#include "runtime/base/dtype.h"
#include "runtime/tensor/shape.h"

namespace weft {

// Returns steps that turn `from` into `to` without changing the value, for every pair of layouts; none if
// they are equal. Greedy, preferring in this order, as far as the nesting of shards allows each:
//
//   slice            costs nothing and makes all that follows smaller
//   reduce-scatter   straight into the final place
//   all-to-all       straight into the final place
//   all-reduce       of the Partial axes that end otherwise, all of one kind in one step
//   gather           of what ends replicated or stands in the way; never of an axis that stays where it is
//   to-partial       last
//
// A Partial whose final place is still taken either waits, to be reduce-scattered there, or joins the
// all-reduce: whichever moves fewer bytes of an evenly divisible tensor; if equal, fewer steps.
//
// Shape:  `from` and `to` have the same ndim and are on `mesh`.
// Cost:   none here; see CostModel.
// Errors: InvalidArgument if ndims or numbers of axes differ.
Redistribution PlanRedistribution(const Layout& from, const Layout& to, const DeviceMesh& mesh);

// Bytes of one step, summed over all ranks of the mesh, counting what members lack: exact for uneven shards.
// The same numbers that the communication ledger records when the step runs.
int64_t StepBytes(const RedistributionStep& step, const Layout& from, const Shape& shape, DType dtype,
                  const DeviceMesh& mesh);

// The sum over the steps.
int64_t TotalBytes(const Redistribution& plan, const Shape& shape, DType dtype, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_PLANNER_H_
