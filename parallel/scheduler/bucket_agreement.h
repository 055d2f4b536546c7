// What ranks agree on about the gradients of one set of buckets.

#ifndef WEFT_PARALLEL_SCHEDULER_BUCKET_AGREEMENT_H_
#define WEFT_PARALLEL_SCHEDULER_BUCKET_AGREEMENT_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "mesh/layout.h"
#include "runtime/base/dtype.h"

namespace weft {

// The order in which leaves came on the mesh's rank 0, then what came on other ranks alone. `arrivals` is this rank's order,
// of leaves below `num_leaves`.
//
// Cost:    one all-reduce of 8 bytes per leaf; none on a mesh of one rank.
// Threads: every rank of the mesh calls it.
std::vector<int> AgreeOnOrder(MeshContext& context, const std::vector<int>& arrivals, int num_leaves);

// A leaf's gradient on this rank: undefined if this rank's pass has not reached it.
struct OwnGradient {
  DTensor gradient;
  DType dtype = DType::kF32;  // the leaf's; terms may come in a wider one
};

// How it is to lie on every rank, and the widest dtype of the leaf's and of what came anywhere.
struct ReachedGradient {
  Layout layout;
  DType dtype = DType::kF32;
};

// Of each leaf that some rank's pass has reached. A rank whose pass reached no leaf at all is not here, and comes with its
// next pass.
//
// Cost:    one all-reduce of 24 bytes per leaf, and 16 more.
// Errors:  FailedPrecondition where ranks have come with passes of different steps.
// Threads: every rank of the mesh calls it.
std::vector<std::optional<ReachedGradient>> AgreeOnReached(MeshContext& context,
                                                           absl::Span<const OwnGradient> own);

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_BUCKET_AGREEMENT_H_
