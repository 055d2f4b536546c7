// Where a gradient lies between its two ways to rest, where ranks keep pieces of it and replicas sum them: HSDP.

#ifndef WEFT_PARALLEL_SCHEDULER_REPLICA_SUM_H_
#define WEFT_PARALLEL_SCHEDULER_REPLICA_SUM_H_

#include "mesh/layout.h"

namespace weft {

// The layout in which the terms of a gradient have been brought to the ranks that keep its pieces, and replicas
// are still to be summed. So the second way, an all-reduce of pieces, is work for a lane of its own. `at_rest`
// itself where there is one way only: nothing is scattered, or nothing is left to be summed.
//   axes         gradient          at rest   between
//   shard, rep   [-, -] P{0,1}     [0, -]    [0, -] P{1}
//   shard, rep   [-, -] P{0}       [0, -]    [0, -]
//   a, b         [-, -] P{0,1}     [-, -]    [-, -]
Layout BeforeReplicaSum(const Layout& gradient, const Layout& at_rest);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_REPLICA_SUM_H_
