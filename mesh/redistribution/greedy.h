#ifndef WEFT_MESH_REDISTRIBUTION_GREEDY_H_
#define WEFT_MESH_REDISTRIBUTION_GREEDY_H_

#include "mesh/redistribution/redistribution.h"

namespace weft {

// Returns steps over one axis at a time that turn `from` into `to` without changing the value, for every pair
// of layouts; none if they are equal. What PlanRedistribution has to beat, and a plan that always exists.
// Greedy, preferring in this order, as far as the nesting of shards allows each:
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
// Errors: InvalidArgument as CheckEnds.
Redistribution PlanGreedy(const Layout& from, const Layout& to, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_GREEDY_H_
