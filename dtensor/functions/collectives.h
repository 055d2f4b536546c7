// Moves along one axis by its name: collectives as functions, and the borders of hand-written parallel layers.

#ifndef WEFT_DTENSOR_FUNCTIONS_COLLECTIVES_H_
#define WEFT_DTENSOR_FUNCTIONS_COLLECTIVES_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"

namespace weft {

// How many ranks an axis of the mesh has, which of them this rank is, and what talks to the others of its line. For
// code on pieces (CallLocal); calls of the communicator are made by all of the line, in one order.
// Errors: InvalidArgument for an axis that the mesh lacks, naming those it has.
int64_t AxisSize(const MeshContext& context, absl::string_view axis);
int64_t RankAlong(MeshContext& context, absl::string_view axis);
Communicator& AxisGroup(MeshContext& context, absl::string_view axis);

// A collective over the lines of an axis, as what it does to a value that stays the same: its placement along that
// axis changes, those along others stay. Differentiable: the gradient goes the other way.
//
// Layout: as each says, along the axis. Backward: to that of x where it is Shard or Replicate; of a Partial x each rank's
//         term gets the whole gradient.
// Cost:   the collective of the name, of x's bytes, in forward; in backward the other direction's.
// Errors: InvalidArgument for an axis that the mesh lacks, or for a placement of x other than is said, naming both.
// Source: the semantics of torch.distributed.nn.functional; on global values.
DTensor AllReduce(const DTensor& x, absl::string_view axis);               // Partial -> Replicate
DTensor ReduceScatter(const DTensor& x, absl::string_view axis, int dim);  // Partial -> Shard(dim)
DTensor AllGather(const DTensor& x, absl::string_view axis);  // Shard -> Replicate; back: reduce-scatter
DTensor AllToAll(const DTensor& x, absl::string_view axis, int dim);  // Shard -> Shard(dim)

// Into a region of a hand-written tensor-parallel layer, whose ranks compute with pieces of its weights, and out of it.
//
//   CopyToRegion       Replicate -> Replicate   backward sums the ranks' parts of the gradient (all-reduce)
//   ScatterToRegion    Replicate -> Shard(dim)  each takes its part; backward gathers
//   ReduceFromRegion   Partial   -> Replicate   sums the ranks' terms (all-reduce); backward does nothing
//   GatherFromRegion   Shard     -> Replicate   backward takes each rank's part, of a sum if it comes as terms
//
// Cost:   the collectives that the table names, of x's bytes, in the direction that it names.
// Errors: as above.
// Source: Shoeybi et al., "Megatron-LM", 2019, its f and g; Megatron-Core's tensor_parallel/mappings.
DTensor CopyToRegion(const DTensor& x, absl::string_view axis);
DTensor ScatterToRegion(const DTensor& x, absl::string_view axis, int dim);
DTensor ReduceFromRegion(const DTensor& x, absl::string_view axis);
DTensor GatherFromRegion(const DTensor& x, absl::string_view axis);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_COLLECTIVES_H_
